"""MTL."""

import dataclasses

import pytest
import torch
from support import WIDTH, C, K, batches, toy, trial
from torch import nn

from pogm._system.errors import UsageError
from pogm.algorithms.mtl import MTL
from pogm.core.batch import Batch
from pogm.core.model import evaluation_mode
from pogm.engine.session import Engine, Session
from pogm.learner import Learner


def naive_loss(mtl, params, batch, embeddings):
    """Compute the equation in a loop over domains, without modules."""
    loss, kept = 0.0, []
    for x, y, old in zip(batch.x, batch.y, embeddings, strict=True):
        z = torch.tanh(x @ params["features.0.weight"].T + params["features.0.bias"])
        e = mtl.ema * z.mean(0) + (1 - mtl.ema) * old
        logits = torch.stack([torch.cat([row, e]) for row in z]) @ params["head.weight"].T + params["head.bias"]
        loss = loss + nn.functional.cross_entropy(logits, y)
        kept.append(e.detach())
    return loss, torch.stack(kept)


@pytest.mark.parametrize("domains", [1, K])
def test_loss_and_gradient_match_the_equation(domains):
    mtl = MTL(ema=0.7)
    state, problem = toy(mtl, domains=domains)
    (batch,) = batches(domains=domains)
    old = torch.rand(domains, WIDTH, dtype=torch.float64)
    state = state._replace(memory={"embeddings": old})

    leaves = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    expected, kept = naive_loss(mtl, leaves, batch, old)
    slopes = torch.autograd.grad(expected, list(leaves.values()))

    gradient, loss = mtl.gradient(state, batch, problem)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(loss.memory["embeddings"], kept)
    torch.testing.assert_close(list(gradient.values()), list(slopes))


def test_embeddings_start_at_zero_and_follow_the_domains():
    mtl = MTL(ema=0.5)
    state, problem = toy(mtl, lr=0.0)
    (batch,) = batches()
    means = torch.stack([problem.model(state.params, state).features(x).mean(0) for x in batch.x])
    assert not state.memory["embeddings"].any()
    for expected in (0.5, 0.75, 0.875):
        state, _ = mtl.step(state, [batch], problem)
        torch.testing.assert_close(state.memory["embeddings"], expected * means)


def test_prediction_uses_the_mean_features_of_its_batch():
    """With a = 1, a training domain is predicted with the features of the training step."""
    mtl = MTL(ema=1.0)
    state, problem = toy(mtl)
    (batch,) = batches()
    model = problem.model(state.params, state)
    logits = torch.stack([mtl.predict(model, x) for x in batch.x])
    risks = nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten()) * K
    torch.testing.assert_close(mtl.loss(model, batch, state).value, risks)
    alone = mtl.predict(model, batch.x[0, :1])
    assert not torch.allclose(alone[0], logits[0, 0])
    assert mtl.prediction_batch_size == 64


def test_prediction_does_not_depend_on_the_order_of_the_batch():
    state, problem = toy(MTL())
    x = batches()[0].x[0]
    model = problem.model(state.params, state)
    torch.testing.assert_close(MTL().predict(model, x.flip(0)), MTL().predict(model, x).flip(0))


def test_compat_noise_replaces_the_embeddings():
    """The second half of the inputs of the head is standard normal, independent for samples and steps."""
    mtl = MTL(compat_noise=True)
    state, problem = toy(mtl)
    (batch,) = batches()
    shown = {**state.params, "head.weight": torch.eye(2 * WIDTH, dtype=torch.float64)[WIDTH:]}
    shown["head.bias"] = torch.zeros(WIDTH, dtype=torch.float64)

    def seen(step, x):
        return mtl.predict(problem.model(shown, state._replace(step=torch.tensor(step))), x)

    x = batch.x[0].repeat(400, 1)
    noise = seen(0, x)
    assert noise.mean().abs() < 0.03
    assert (noise.std() - 1).abs() < 0.03
    assert noise.unique().numel() == noise.numel()
    assert not torch.equal(noise, seen(1, x))
    with evaluation_mode(problem.network):
        assert torch.equal(noise, seen(0, x)), "in prediction too"

    model = problem.model(state.params, state)
    loss = mtl.loss(model, batch, state)
    torch.testing.assert_close(loss.value, model.risks(batch).sum())
    after, _ = mtl.step(state, [batch], problem)
    assert not torch.equal(after.params["head.weight"][:, WIDTH:], state.params["head.weight"][:, WIDTH:])


@pytest.mark.parametrize("noise", [False, True])
def test_session_trains_and_predicts_with_a_head_of_several_layers(noise):
    run = trial(MTL(compat_noise=noise))
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, nonlinear_classifier=True))
    session = Session([run.task(None)], Engine())
    session.step()
    assert session.train_state.state.memory["embeddings"].shape[1] == session.network.head[0].in_features // 2
    assert all(0 <= share <= 1 for share in session.accuracies()[0])


def test_labels_can_be_probabilities():
    state, problem = toy(MTL())
    (batch,) = batches()
    soft = Batch(batch.x, nn.functional.one_hot(batch.y, C).double())
    hard, same = (MTL().step(state, [given], problem)[0] for given in (batch, soft))
    torch.testing.assert_close(hard.params, same.params)


def test_module_of_a_learner_raises():
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    learner = Learner(module.double(), MTL(), head="2")
    with pytest.raises(UsageError, match=r"MTL\.build"):
        learner.step(batches()[0])
