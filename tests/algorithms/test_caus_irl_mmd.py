"""CausIRL with MMD."""

import math

import pytest
import torch
from support import K, batches, toy

from pogm.algorithms.caus_irl import split_samples
from pogm.algorithms.caus_irl_mmd import CausIRLMMD
from pogm.algorithms.mmd import GAMMAS, mean_discrepancy


def mean_kernel(left, right):
    """Return the mean over pairs of the sum of kernels, pair by pair."""
    pairs = [(a - b).square().sum() for a in left for b in right]
    return sum(torch.exp(-gamma * square) for square in pairs for gamma in GAMMAS) / len(pairs)


def test_loss_is_mean_risk_plus_discrepancy_of_both_groups():
    method = CausIRLMMD(penalty=3.0)
    state, problem = toy(method)
    (batch,) = batches(size=4)
    model = problem.model(state.params, state)
    sizes = split_samples(method.random_key(state), *batch.y.shape).sum(1).tolist()
    z = [model.features(x) for x in batch.x]
    first = torch.cat([z[k][: sizes[k]] for k in range(K)])
    second = torch.cat([z[k][sizes[k] :] for k in range(K)])
    expected = mean_kernel(first, first) + mean_kernel(second, second) - 2 * mean_kernel(first, second)
    loss = method.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["penalty"], expected)
    torch.testing.assert_close(loss.value, model.risks(batch).mean() + 3 * expected)


def test_known_value_of_two_points():
    """Groups {0, 0} and {1, 1}: Σ_σ (2 − 2 exp(−σ))."""
    z = torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    masks = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.float64)
    known = sum(2 - 2 * math.exp(-gamma) for gamma in GAMMAS)
    assert CausIRLMMD().distance(z, masks).item() == pytest.approx(known)


def test_distance_of_two_whole_domains_is_that_of_mmd():
    z = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    masks = torch.tensor([[1.0] * 5 + [0.0] * 5, [0.0] * 5 + [1.0] * 5], dtype=torch.float64)
    torch.testing.assert_close(CausIRLMMD().distance(z.flatten(0, 1), masks), mean_discrepancy(z))
