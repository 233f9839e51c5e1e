"""Fishr."""

import pytest
import torch
from support import WIDTH, C, K, batches, features, toy
from torch import nn

from pogm import ERM, Fishr
from pogm._system.errors import UsageError
from pogm.algorithms.fishr import gradient_variances
from pogm.core.batch import Batch
from pogm.core.losses import probabilities
from pogm.core.model import Network, over_samples


class DeepHead(Fishr):
    """Fishr on a head of two layers."""

    def build(self, features, width, num_classes, num_domains):
        return Network(features, nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, num_classes)))


def per_sample_variances(problem, state, batch):
    """Return the variance over one backward pass per sample."""
    rows = []
    for k in range(K):
        gradients = []
        for x, y in zip(batch.x[k], batch.y[k], strict=True):
            leaves = {n: leaf.clone().requires_grad_() for n, leaf in state.params.items()}
            loss = nn.functional.cross_entropy(problem.model(leaves, state)(x[None]), y[None])
            head = [leaf for name, leaf in leaves.items() if name.startswith("head.")]
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, head)]))
        rows.append(torch.stack(gradients).var(0, correction=0))
    return torch.stack(rows)


class NoBias(Fishr):
    """Fishr on a linear head without a bias."""

    def build(self, features, width, num_classes, num_domains):
        return Network(features, nn.Linear(width, num_classes, bias=False))


@pytest.mark.parametrize("cls", [Fishr, DeepHead, NoBias])
@pytest.mark.parametrize("soft", [False, True])
def test_variances_equal_those_of_per_sample_backward_passes(cls, soft):
    state, problem = toy(cls())
    (batch,) = batches()
    if soft:  # mixed labels
        batch = Batch(batch.x, 0.7 * probabilities(batch.y, C).double() + 0.3 / C)
    model = problem.model(state.params, state)
    z = over_samples(model.features, batch.x)
    found = gradient_variances(model, z, over_samples(model.head, z), batch.y)
    torch.testing.assert_close(found, per_sample_variances(problem, state, batch))


def test_loss_is_risk_plus_distance_of_averaged_variances():
    fishr = Fishr(penalty=7.0, penalty_anneal_iters=0, ema=0.9)
    state, problem = toy(fishr)
    (batch,) = batches()
    old = torch.rand(K, (WIDTH + 1) * C, dtype=torch.float64)
    state = state._replace(memory={"variances": old})
    variances = per_sample_variances(problem, state, batch)
    averages = 0.9 * old + 0.1 * variances
    corrected = averages / 0.1
    spread = ((corrected - corrected.mean(0)) ** 2).mean(1).mean()

    loss = fishr.loss(problem.model(state.params, state), batch, state)
    torch.testing.assert_close(loss.metrics["penalty"], spread)
    torch.testing.assert_close(loss.value, problem.model(state.params, state).risks(batch).mean() + 7 * spread)
    torch.testing.assert_close(loss.memory["variances"], averages)


def test_gradient_reaches_features_and_does_not_depend_on_ema():
    (batch,) = batches()
    slopes = []
    for ema in (0.0, 0.9):
        fishr = Fishr(penalty=100.0, penalty_anneal_iters=0, ema=ema)
        state, problem = toy(fishr)
        slopes.append(fishr.gradient(state, batch, problem)[0])
    plain, _ = ERM().gradient(state, batch, problem)
    torch.testing.assert_close(slopes[0]["features.0.weight"], slopes[1]["features.0.weight"])
    assert not torch.allclose(slopes[0]["features.0.weight"], plain["features.0.weight"])


def test_before_annealing_it_is_erm_but_updates_the_averages():
    fishr = Fishr(penalty_anneal_iters=10)
    state, problem = toy(fishr)
    erm, other = toy(ERM())
    (batch,) = batches()
    after, _ = fishr.step(state, [batch], problem)
    expected, _ = ERM().step(erm, [batch], other)
    for name, leaf in after.params.items():
        torch.testing.assert_close(leaf, expected.params[name])
    assert (after.memory["variances"] > 0).any()


def test_equal_domains_have_no_penalty():
    fishr = Fishr(penalty_anneal_iters=0)
    state, problem = toy(fishr)
    (batch,) = batches()
    same = type(batch)(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    loss = fishr.loss(problem.model(state.params, state), same, state)
    assert loss.metrics["penalty"] < 1e-25


def test_one_domain_gives_erm():
    fishr = Fishr(penalty_anneal_iters=0)
    state, problem = toy(fishr, domains=1)
    (batch,) = batches(domains=1)
    torch.testing.assert_close(fishr.gradient(state, batch, problem)[0], ERM().gradient(state, batch, problem)[0])


def test_head_without_bias_trains():
    state, problem = toy(NoBias(penalty_anneal_iters=0))
    after, _ = NoBias(penalty_anneal_iters=0).step(state, batches(), problem)
    assert after.memory["variances"].shape == (K, WIDTH * C)


def test_network_without_head_raises():
    class Headless(Fishr):
        def build(self, _features, width, num_classes, num_domains):
            return Network(nn.Sequential(features(), nn.Linear(WIDTH, C)), nn.Identity())

    with pytest.raises(UsageError, match="head"):
        toy(Headless())
