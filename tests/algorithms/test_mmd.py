"""MMD."""

import math
from itertools import combinations

import pytest
import torch
from support import batches, toy
from torch.func import grad

from pogm.algorithms.erm import ERM
from pogm.algorithms.mmd import GAMMAS, MMD, mean_discrepancy


def pairwise_discrepancy(z):
    """Return the discrepancy by loops over pairs of domains, pairs of samples and kernels."""

    def likeness(a, b):
        values = [sum(torch.exp(-gamma * (u - v).square().sum()) for gamma in GAMMAS) for u in a for v in b]
        return torch.stack(values).mean()

    pairs = [likeness(a, a) + likeness(b, b) - 2 * likeness(a, b) for a, b in combinations(z, 2)]
    return torch.stack(pairs).mean()


def test_loss_is_mean_risk_plus_weighted_discrepancy():
    mmd = MMD(penalty=3.0)
    state, problem = toy(mmd)
    (batch,) = batches(size=4)
    model = problem.model(state.params, state)
    discrepancy = pairwise_discrepancy(torch.stack([model.features(x) for x in batch.x]))
    loss = mmd.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["penalty"], discrepancy)
    torch.testing.assert_close(loss.value, model.risks(batch).mean() + 3 * discrepancy)

    def naive(params):
        model = problem.model(params, state)
        return model.risks(batch).mean() + 3 * pairwise_discrepancy(torch.stack([model.features(x) for x in batch.x]))

    torch.testing.assert_close(mmd.gradient(state, batch, problem)[0], grad(naive)(state.params))


def test_known_value():
    """Two domains with one sample each, at distance 1, have discrepancy 2 Σ (1 − e^−γ)."""
    assert GAMMAS == (0.001, 0.01, 0.1, 1, 10, 100, 1000)
    z = torch.tensor([[[0.0, 0.0]], [[0.6, 0.8]]], dtype=torch.float64)
    expected = 2 * sum(1 - math.exp(-gamma) for gamma in GAMMAS)
    torch.testing.assert_close(mean_discrepancy(z).item(), expected)


def test_equal_distributions_have_a_discrepancy_because_pairs_contain_each_sample_with_itself():
    """Samples of one distribution, far from each other: 2/B for each kernel, and 0 only if all features are equal."""
    torch.manual_seed(0)
    z = 1000 * torch.randn(2, 64, 3, dtype=torch.float64)
    assert mean_discrepancy(z).item() == pytest.approx(2 / 64 * len(GAMMAS), rel=0.05)
    assert mean_discrepancy(torch.ones_like(z)) == 0


def test_order_of_samples_does_not_matter():
    torch.manual_seed(0)
    z = torch.randn(5, 3, dtype=torch.float64)
    assert mean_discrepancy(torch.stack([z, z.flip(0), z.roll(2, 0)])).abs() < 1e-14


def test_discrepancy_depends_on_more_than_two_moments():
    """Two and three points with equal mean and variance, which have distance zero for CORAL."""
    two = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    three = torch.tensor([-1.5, -1.5, 0.0, 0.0, 1.5, 1.5]) / 1.5**0.5
    torch.testing.assert_close(two.var(), three.var())
    assert mean_discrepancy(torch.stack([two, three])[..., None]) > 0.1


def test_float32_is_precise_far_from_the_origin():
    """An expanded square would lose all digits there."""
    torch.manual_seed(0)
    z = (100 + 0.01 * torch.randn(2, 8, 16)).float()
    torch.testing.assert_close(mean_discrepancy(z).double(), mean_discrepancy(z.double()), rtol=1e-4, atol=1e-6)


def test_gradient_at_equal_samples_is_finite_and_correct():
    torch.manual_seed(0)
    z = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mean_discrepancy, z)


def test_one_domain_gives_erm():
    (batch,) = batches(domains=1)
    state, problem = toy(MMD(), domains=1)
    found, _ = MMD().step(state, [batch], problem)
    expected, _ = ERM().step(state, [batch], problem)
    torch.testing.assert_close(found.params, expected.params)
