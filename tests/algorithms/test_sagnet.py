"""SagNet."""

import copy
import dataclasses
import math

import pytest
import torch
from support import C, K, assert_close, batches, toy
from torch import nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from pogm import Learner
from pogm._system.errors import UsageError
from pogm.algorithms.sagnet import SagNet, draw_partners, mix_styles, replace_content, split_style
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.losses import probabilities

Z = torch.randn(12, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
KEY = random.key(5)


def plain(z, key, what):
    """Return S(z) or R(z), computed sample by sample."""
    share, partner = draw_partners(len(z), key)
    rows = []
    for j, p in enumerate(partner.tolist()):
        n, mean, variance = (z[j] - z[j].mean()) / (z[j].var() + 1e-5) ** 0.5, z[j].mean(), z[j].var()
        if what == "style":
            mean = share[j] * mean + (1 - share[j]) * z[p].mean()
            variance = share[j] * variance + (1 - share[j]) * z[p].var()
        else:
            n = ((z[p] - z[p].mean()) / (z[p].var() + 1e-5) ** 0.5).detach()
        rows.append(n * (variance + 1e-5) ** 0.5 + mean)
    return torch.stack(rows)


@pytest.mark.parametrize(("what", "function"), [("style", mix_styles), ("content", replace_content)])
def test_randomisation_equals_a_loop_over_samples(what, function):
    torch.testing.assert_close(function(Z, KEY), plain(Z, KEY, what))
    torch.testing.assert_close(
        grad(lambda z: function(z, KEY).square().sum())(Z), grad(lambda z: plain(z, KEY, what).square().sum())(Z)
    )


def test_mixed_style_keeps_the_content():
    torch.testing.assert_close(split_style(mix_styles(Z, KEY))[0], split_style(Z)[0], rtol=1e-4, atol=1e-4)


def test_mixed_style_lies_between_both_styles():
    _, mean, variance = split_style(Z)
    _, partner = draw_partners(len(Z), KEY)
    _, found_mean, found_variance = split_style(mix_styles(Z, KEY))
    for own, found in ((mean, found_mean), (variance, found_variance)):
        low, high = torch.minimum(own, own[partner]), torch.maximum(own, own[partner])
        assert ((found > low - 1e-4) & (found < high + 1e-4)).all()
    assert not torch.allclose(mean, found_mean)


def test_replaced_content_keeps_the_style():
    content, mean, variance = split_style(Z)
    _, partner = draw_partners(len(Z), KEY)
    found = split_style(replace_content(Z, KEY))
    for part, expected in zip(found, (content[partner], mean, variance), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-4)


def test_partners_come_from_the_pooled_batch():
    share, partner = draw_partners(1000, KEY)
    assert sorted(partner.tolist()) == list(range(1000))
    assert share.shape == (1000, 1)
    assert abs(share.mean() - 0.5) < 0.03


@pytest.mark.parametrize("domains", [K, 1])
def test_two_steps_equal_a_plain_torch_implementation(domains):
    sagnet = SagNet(adversary_weight=0.7)
    state, problem = toy(sagnet, weight_decay=0.01, domains=domains)
    network = copy.deepcopy(problem.network).requires_grad_()
    features, head, style = (
        torch.optim.Adam(part.parameters(), lr=0.05, weight_decay=0.01)
        for part in (network.features, network.head, network.style)
    )
    for batch in batches(2, domains=domains):
        x, y = batch.x.flatten(0, 1), batch.y.flatten()
        keys = [sagnet.random_key(state, move) for move in range(3)]
        state, metrics = sagnet.step(state, [batch], problem)

        first = cross_entropy(network.head(plain(network.features(x), keys[0], "style")), y)
        network.zero_grad()
        first.backward()
        features.step()
        head.step()
        second = cross_entropy(network.style(plain(network.features(x), keys[1], "content")), y)
        network.zero_grad()
        second.backward()
        style.step()
        third = -0.7 * network.style(plain(network.features(x), keys[2], "content")).log_softmax(1).mean(1).mean()
        network.zero_grad()
        third.backward()
        features.step()
        found = [metrics[name] for name in ("loss", "style_loss", "adversary_loss")]
        torch.testing.assert_close(torch.stack(found), torch.stack([first, second, third]).detach())
    assert_close(state.params, {n: leaf.detach() for n, leaf in network.named_parameters()}, 1e-8)


def test_featurizer_is_updated_twice_per_step():
    state, problem = toy(SagNet())
    after, _ = SagNet().step(state, batches(), problem)
    assert {who: kept["count"].item() for who, kept in after.optimizer.items()} == {
        "features": 2,
        "content": 1,
        "style": 1,
    }


def test_adversarial_update_makes_the_style_head_less_certain():
    """Without the other updates, the cross-entropy of the style head approaches log C."""
    sagnet = SagNet(adversary_weight=100.0)
    state, problem = toy(sagnet, lr=0.02)
    state = state._replace(params={n: 5 * p if n.startswith("style.") else p for n, p in state.params.items()})
    values = []
    for seed in range(40):
        state, metrics = sagnet.step(state, batches(seed=seed), problem)
        values.append(metrics["adversary_loss"] / 100)
    assert math.log(C) < values[-1] < values[0]
    assert values[-1] < math.log(C) + 0.5 * (values[0] - math.log(C))


def test_prediction_uses_the_content_head():
    state, problem = toy(SagNet())
    (batch,) = batches()
    other = {n: p + 1 if n.startswith("style.") else p for n, p in state.params.items()}
    first, second = (SagNet().predict(problem.model(params, state), batch.x[0]) for params in (state.params, other))
    assert torch.equal(first, second)


def test_labels_can_be_probabilities():
    state, problem = toy(SagNet())
    (batch,) = batches()
    soft = Batch(batch.x, probabilities(batch.y, C).double())
    assert_close(*(SagNet().step(state, [one], problem) for one in (batch, soft)))


def test_penalty_of_a_modifier_is_part_of_the_content_loss():
    state, problem = toy(SagNet())
    more = dataclasses.replace(problem, penalties=[lambda model, batch: 2.0])
    losses = [SagNet().step(state, batches(), given)[1] for given in (problem, more)]
    torch.testing.assert_close(losses[1]["loss"], losses[0]["loss"] + 2)
    torch.testing.assert_close(losses[1]["style_loss"], losses[0]["style_loss"])


def test_adversary_weight_can_be_a_tensor():
    state, problem = toy(SagNet())
    other = dataclasses.replace(SagNet(), adversary_weight=torch.tensor(0.1, dtype=torch.float64))
    assert_close(*(one.step(state, batches(), problem) for one in (SagNet(), other)))


def test_module_of_a_learner_raises():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), SagNet(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match="networks of its own"):
        learner.step(list(zip(x, y, strict=True)))
