"""URM."""

import copy

import pytest
import torch
from support import B, C, K, assert_close, batches, steps, toy
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

from pogm import ERM, Learner
from pogm._system.errors import UsageError
from pogm.algorithms.urm import URM

ONE = {"tanh": -1.0, "relu": 0.0, "sigmoid": 0.0}


@pytest.mark.parametrize(("output", "smoothing"), [("tanh", 0.0), ("relu", 0.2), ("sigmoid", 0.1)])
def test_two_steps_equal_a_plain_torch_implementation_with_two_backward_passes(output, smoothing):
    urm = URM(adversary_weight=0.7, output=output, hidden_layers=2, label_smoothing=smoothing, lr_d=0.02)
    state, problem = toy(urm, weight_decay=0.01)
    network = copy.deepcopy(problem.network).requires_grad_()
    generator = torch.optim.Adam([*network.features.parameters(), *network.head.parameters()], 0.05, weight_decay=0.01)
    discriminator = torch.optim.Adam(network.discriminator.parameters(), 0.02, weight_decay=0.01)
    for batch in batches(2):
        x, y = batch.x.flatten(0, 1), batch.y.flatten()
        noise = ONE[output] + (1 - ONE[output]) * urm.draw(state, 0, torch.empty(K, B, 5, dtype=torch.float64))
        real, fake = (urm.draw(state, purpose, torch.empty(K, B, dtype=torch.float64)).flatten() for purpose in (1, 2))
        state, metrics = urm.step(state, [batch], problem)

        z = network.features(x)
        risk = cross_entropy(network.head(z), y)
        first = risk + 0.7 * bce(network.discriminator(z)[:, 0], torch.ones(K * B).double())
        network.zero_grad()
        first.backward()
        generator.step()
        second = bce(network.discriminator(noise.flatten(0, 1))[:, 0], 1 - smoothing * real)
        second = second + 0.7 * bce(network.discriminator(z.detach())[:, 0], smoothing * fake)
        network.zero_grad()
        second.backward()
        discriminator.step()
        for name, value in (("loss", risk), ("gen_loss", first), ("disc_loss", second)):
            torch.testing.assert_close(metrics[name], value.detach())
    assert_close(state.params, {n: leaf.detach() for n, leaf in network.named_parameters()}, 1e-8)


def test_weight_zero_gives_erm_with_the_activation():
    """The features of the toy network end with tanh; a second tanh is part of both networks."""

    class Activated(ERM):
        featurizer = URM.featurizer
        output = "tanh"

    found, expected = steps(URM(adversary_weight=0.0), 4).params, steps(Activated(), 4).params
    assert_close({name: found[name] for name in expected}, expected)


@pytest.mark.parametrize(("output", "low", "high"), [("tanh", -1, 1), ("relu", 0, 1e9), ("sigmoid", 0, 1)])
def test_features_have_the_range_of_the_noise(output, low, high):
    state, problem = toy(URM(output=output))
    z = problem.model(state.params, state).features(100 * batches()[0].x[0])
    assert low <= z.min()
    assert z.max() <= high


def test_training_makes_features_look_like_noise_to_a_fixed_discriminator():
    urm = URM(adversary_weight=100.0, lr_d=1e-12)
    state, problem = toy(urm)
    values = []
    for _ in range(20):
        state, metrics = urm.step(state, batches(), problem)
        values.append((metrics["gen_loss"] - metrics["loss"]) / 100)
    assert values[-1] < values[0] - 0.01


def test_discriminator_has_the_given_layers():
    network = URM(hidden_layers=2).build(nn.Identity(), 7, C, K)
    linear = [layer for layer in network.discriminator if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(7, 100), (100, 100), (100, 100), (100, 1)]


def test_module_of_a_learner_raises():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), URM(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match="networks of its own"):
        learner.step(list(zip(x, y, strict=True)))
