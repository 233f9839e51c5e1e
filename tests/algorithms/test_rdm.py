"""RDM."""

import dataclasses
import math

import pytest
import torch
from support import B, K, batches, toy

from pogm._system.errors import UsageError
from pogm.algorithms.rdm import RDM, kernel_distance
from pogm.benchmark.plan.sweep import configuration


def kernel_mean(left, right):
    """The mean kernel over all pairs, pair by pair."""
    pairs = [(u - v) ** 2 for u in left for v in right]
    return sum(math.exp(-(10.0**power) * pair) for pair in pairs for power in range(-4, 4)) / len(pairs)


def naive_distance(sample, everything):
    own, other, mixed = ((sample, sample), (everything, everything), (sample, everything))
    return kernel_mean(*own) + kernel_mean(*other) - 2 * kernel_mean(*mixed)


def chosen(k, count=K):
    return torch.eye(count, dtype=torch.float64)[k]


def loss_at(rdm, batch, domains=K):
    state, problem = toy(rdm, domains=domains)
    model = problem.model(state.params, state)
    return rdm.loss(model, batch, state), model.losses(batch)


def test_the_distance_is_that_of_the_three_kernel_means():
    torch.manual_seed(0)
    losses = torch.rand(K, B, dtype=torch.float64) * torch.tensor([[1.0], [0.1], [5.0]])
    for k in range(K):
        expected = naive_distance(losses[k].tolist(), losses.flatten().tolist())
        assert kernel_distance(losses, chosen(k)).item() == pytest.approx(expected, abs=1e-12)


def test_equal_samples_are_at_distance_zero():
    row = torch.rand(B, dtype=torch.float64)
    same = torch.stack([row, row.flip(0), row.roll(3)])
    assert kernel_distance(same, chosen(1)).abs() < 1e-14


def test_far_samples_are_at_the_known_distance():
    """Of eight kernels, each 1 within a domain and 0 between: 8 (1 - 1/K)."""
    losses = torch.tensor([[0.0], [1e4], [3e4]], dtype=torch.float64).expand(K, B)
    assert kernel_distance(losses, chosen(0)).item() == pytest.approx(8 * (1 - 1 / K))


def test_the_loss_is_risk_plus_distance_plus_both_variances():
    (batch,) = batches()
    loss, losses = loss_at(RDM(penalty=7.0, variance_weight=0.3, penalty_anneal_iters=0), batch)
    risks = losses.mean(1)
    worst, everything = losses[risks.argmax()], losses.flatten()
    distance = naive_distance(worst.tolist(), everything.tolist())
    variance = worst.var() + everything.var()
    torch.testing.assert_close(loss.metrics["variance"], variance)
    assert loss.metrics["matching"].item() == pytest.approx(distance, abs=1e-12)
    torch.testing.assert_close(loss.value, risks.mean() + 7 * distance + 0.3 * variance)


def test_the_worst_domain_is_the_one_that_is_matched():
    (batch,) = batches()
    _, losses = loss_at(RDM(), batch)
    found = []
    for turn in range(K):
        turned = type(batch)(batch.x.roll(turn, 0), batch.y.roll(turn, 0))
        found.append(loss_at(RDM(), turned)[0].metrics["matching"])
    best = kernel_distance(losses, chosen(losses.mean(1).argmin()))
    torch.testing.assert_close(torch.stack(found), found[0].expand(K))
    assert not torch.isclose(found[0], best)


def test_one_domain_has_nothing_to_match_but_its_variance():
    (batch,) = batches(domains=1)
    loss, losses = loss_at(RDM(variance_weight=0.1, penalty_anneal_iters=0), batch, domains=1)
    assert loss.metrics["matching"] == 0
    torch.testing.assert_close(loss.value, losses.mean() + 0.2 * losses.var())
    assert RDM.min_domains == 1


def test_a_single_sample_has_no_variance():
    with pytest.raises(UsageError, match="batch_size"):
        loss_at(RDM(), batches(size=1)[0])


def test_large_images_have_the_published_rate_and_small_ones_keep_theirs():
    assert configuration(RDM(), 0, 0, large=True) == dataclasses.replace(RDM(), later_lr=1.5e-5)
    assert 8e-6 <= configuration(RDM(), 1, 0, large=True).later_lr <= 2e-5
    assert configuration(RDM(), 1, 0).later_lr == 0


def test_domain_net_has_its_preset():
    preset = RDM.preset("domain_net")
    assert (preset.penalty, preset.penalty_anneal_iters, preset.variance_weight) == (0.5, 2400, 0.0)


def test_datasets_without_a_variance_term_have_presets():
    for name in ("office_home", "terra_incognita"):
        assert RDM.preset(name) == RDM(variance_weight=0.0)
