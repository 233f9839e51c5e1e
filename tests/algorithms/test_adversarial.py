"""DANN and CDANN, compared with an implementation in plain torch that follows DomainBed."""

import copy
import dataclasses

import pytest
import torch
from support import WIDTH, C, K, assert_close, batches, toy, trial
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import ERM, Learner
from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.core.model import over_samples
from pogm.core.optimizers import Adam
from pogm.engine.session import Engine, Session

both = pytest.mark.parametrize("name", ["DANN", "CDANN"])
turns = pytest.mark.parametrize("turns", [1, 2, 3])
VALUES = {"lr_g": 0.03, "lr_d": 0.07, "weight_decay_g": 0.01, "weight_decay_d": 0.02, "adversary_weight": 0.6}


def dis(network, batch, rho):
    """Return d, computed sample by sample with autograd."""
    z = torch.stack([network.features(x) for k in range(K) for x in batch.x[k][:, None]])[:, 0]
    y = batch.y.flatten().tolist()
    u = z if not hasattr(network, "embedding") else z + network.embedding.weight.T[batch.y.flatten()]
    domains = torch.arange(K).repeat_interleave(batch.y.shape[1])
    losses = [cross_entropy(network.discriminator(one[None]), k[None]) for one, k in zip(u, domains, strict=True)]
    if hasattr(network, "embedding"):
        value = sum(loss / (y.count(c) * (1 + max(y))) for c, loss in zip(y, losses, strict=True))
    else:
        value = sum(losses) / len(losses)
    (slopes,) = torch.autograd.grad(sum(losses), u, create_graph=True)
    return value + rho * (slopes**2).sum(1).mean()


def plain_game(algorithm, problem, state, minibatches):
    """Train as DomainBed does: a counter decides which network is updated."""
    network = copy.deepcopy(problem.network)
    network.load_state_dict(state.params, strict=False)
    network.requires_grad_()
    discriminator = [p for n, p in network.named_parameters() if n.startswith(("discriminator.", "embedding."))]
    generator = [p for n, p in network.named_parameters() if n.startswith(("features.", "head."))]
    betas, m = (algorithm.beta1, 0.9), algorithm.discriminator_steps
    disc = torch.optim.Adam(discriminator, algorithm.lr_d, betas, weight_decay=algorithm.weight_decay_d)
    gen = torch.optim.Adam(generator, algorithm.lr_g, betas, weight_decay=algorithm.weight_decay_g)
    losses = {"loss": [], "gen_loss": [], "disc_loss": []}
    for counter, batch in enumerate(minibatches, start=1):
        discriminator_loss = dis(network, batch, algorithm.gradient_penalty)
        disc.zero_grad()
        gen.zero_grad()
        if counter % (1 + m) < m:
            discriminator_loss.backward()
            disc.step()
            losses["disc_loss"].append(discriminator_loss.item())
        else:
            logits = network(batch.x.flatten(0, 1))
            risk = cross_entropy(logits, batch.y.flatten())
            value = risk - algorithm.adversary_weight * discriminator_loss
            value.backward()
            gen.step()
            losses["loss"].append(risk.item())
            losses["gen_loss"].append(value.item())
    return dict(network.named_parameters()), losses


@both
@turns
@pytest.mark.parametrize(("rho", "beta1"), [(0.0, 0.5), (0.7, 0.0)])
def test_two_steps_equal_a_plain_torch_implementation(name, turns, rho, beta1):
    options = {"discriminator_steps": turns, "gradient_penalty": rho, "beta1": beta1, "mlp_width": 7, "mlp_depth": 3}
    algorithm = algorithm_class(name)(**VALUES, **options)
    state, problem = toy(algorithm)
    made = batches(2 * (1 + turns))
    expected, losses = plain_game(algorithm, problem, state, made)
    found = {}
    for half in (made[: 1 + turns], made[1 + turns :]):
        state, metrics = algorithm.step(state, half, problem)
        for key, value in metrics.items():
            found[key] = found.get(key, 0.0) + value / 2
    assert_close(state.params, {name: expected[name].detach() for name in state.params}, 1e-9)
    assert_close(found, {key: torch.tensor(losses[key]).double().mean() for key in found}, 1e-6)
    assert found.keys() == losses.keys()


@both
@turns
def test_step_uses_one_minibatch_more_than_discriminator_steps(name, turns):
    algorithm = algorithm_class(name)(discriminator_steps=turns)
    assert algorithm.minibatches == 1 + turns
    state, problem = toy(algorithm)
    after, _ = algorithm.step(state, batches(1 + turns), problem)
    assert after.optimizer["generator"]["count"] == 1
    assert after.optimizer["discriminator"]["count"] == turns


@both
def test_zero_penalty_as_number_equals_zero_penalty_as_tensor(name):
    """Several trials at once have a tensor as weight, and compute the penalty."""
    algorithm = algorithm_class(name)()
    other = dataclasses.replace(algorithm, gradient_penalty=torch.tensor(0.0, dtype=torch.float64))
    state, problem = toy(algorithm)
    assert_close(*(one.step(state, batches(2), problem) for one in (algorithm, other)))


@both
def test_zero_adversary_weight_gives_erm(name):
    algorithm = algorithm_class(name)(adversary_weight=0.0, lr_g=0.05)
    state, problem = toy(algorithm)
    after, metrics = algorithm.step(state, batches(2), problem)
    plain = dataclasses.replace(problem, optimizer=Adam(0.05, beta1=0.5, beta2=0.9))
    gradient, loss = ERM().gradient(state, batches()[0], problem)
    expected, _ = plain.optimizer.update(state.params, gradient, plain.optimizer.init(state.params))
    for leaf in ("features.0.weight", "head.weight", "head.bias"):
        torch.testing.assert_close(after.params[leaf], expected[leaf])
    torch.testing.assert_close(metrics["loss"], loss.value)


@both
def test_discriminator_decreases_and_generator_increases_the_domain_loss(name):
    """Both act on the same loss."""
    (batch,) = batches()
    changes = []
    for rates in ({"lr_d": 1e-3, "lr_g": 1e-12}, {"lr_d": 1e-12, "lr_g": 1e-3}):
        algorithm = algorithm_class(name)(adversary_weight=1000.0, **rates)
        state, problem = toy(algorithm)
        after, _ = algorithm.step(state, [batch, batch], problem)
        before, now = (algorithm.discriminator_loss(batch, problem.model(s.params, s)).value for s in (state, after))
        changes.append(now - before)
    assert changes[0] < -1e-4
    assert changes[1] > 1e-4


@both
def test_learning_rate_and_weight_decay_of_the_run_are_not_used(name):
    made = batches(2)
    results = []
    for lr, decay in ((0.05, 0.0), (0.5, 0.1)):
        state, problem = toy(algorithm_class(name)(), lr=lr, weight_decay=decay)
        results.append(algorithm_class(name)().step(state, made, problem))
    assert_close(*results, 0.0)


@both
def test_discriminator_has_the_given_width_and_depth(name):
    network = algorithm_class(name)(mlp_width=9, mlp_depth=4, mlp_dropout=0.5).build(nn.Identity(), WIDTH, C, K)
    linear = [layer for layer in network.discriminator if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(WIDTH, 9), (9, 9), (9, 9), (9, K)]
    assert [type(layer).__name__ for layer in network.discriminator[:3]] == ["Linear", "Dropout", "ReLU"]
    assert {layer.rate.item() for layer in network.discriminator if hasattr(layer, "rate")} == {0.5}


@both
def test_every_update_of_a_step_has_its_own_dropout_mask(name):
    """With learning rate 0 and equal minibatches, only the dropout masks differ."""
    algorithm = algorithm_class(name)(mlp_dropout=0.5, discriminator_steps=2, lr_d=1e-12, lr_g=1e-12)
    state, problem = toy(algorithm)
    (batch,) = batches()
    _, metrics = algorithm.step(state, [batch, batch, batch], problem)
    values = []
    for move in (0, 2):
        keyed = state._replace(key=algorithm.random_key(state, move))
        values.append(algorithm.discriminator_loss(batch, problem.model(keyed.params, keyed)).value)
    assert values[0] != values[1]
    torch.testing.assert_close(metrics["disc_loss"], torch.stack(values).mean(), rtol=1e-6, atol=0)


@both
def test_trials_with_different_dropout_can_be_batched(name):
    first = trial(algorithm_class(name)(mlp_dropout=0.5), precision="fp64")
    other = dataclasses.replace(first, algorithm=algorithm_class(name)(mlp_dropout=0.1))
    together = Session([first.task(None), other.task(None)], Engine())
    apart = [Session([one.task(None)], Engine()) for one in (first, other)]
    for session in (together, *apart):
        session.step()
        session.step()
    for row, session in enumerate(apart):
        params = {name: leaf[row] for name, leaf in together.train_state.state.params.items()}
        assert_close(params, session.train_state.state.params, 1e-8)


@both
def test_module_of_a_learner_raises(name):
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), algorithm_class(name)(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match="networks of its own"):
        learner.step(list(zip(x, y, strict=True)))


def test_base_class_is_not_registered():
    assert "Adversarial" not in all_algorithms()


def test_gradient_penalty_is_part_of_the_generator_loss():
    """The penalty is part of d for both players, as in DomainBed."""
    (batch,) = batches()
    slopes = []
    for rho in (0.0, 1.0):
        algorithm = algorithm_class("DANN")(gradient_penalty=rho, mlp_width=8)
        state, problem = toy(algorithm)
        x = batch.x.clone().requires_grad_()
        model = problem.model(state.params, state)
        with torch.enable_grad():
            value = algorithm.domain_loss(model, over_samples(model.features, x), batch.y)
        slopes.append(torch.autograd.grad(value, x)[0])
    assert not torch.allclose(*slopes)
