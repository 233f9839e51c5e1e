"""CORAL."""

from itertools import combinations

import pytest
import torch
from support import B, K, batches, toy

from pogm._system.errors import UsageError
from pogm.algorithms.coral import CORAL, moment_distance
from pogm.algorithms.erm import ERM
from pogm.core.batch import Batch


def pairwise_distance(z):
    """Return the distance as DomainBed defines it: a loop over pairs of domains."""
    distances = []
    for a, b in combinations(z, 2):
        means = (a.mean(0) - b.mean(0)).square().mean()
        covariances = (torch.cov(a.T) - torch.cov(b.T)).square().mean()
        distances.append(means + covariances)
    return torch.stack(distances).mean()


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_distance_is_the_mean_over_pairs_of_domains(domains):
    torch.manual_seed(0)
    z = torch.randn(domains, 6, 4, dtype=torch.float64) * torch.arange(1.0, domains + 1)[:, None, None]
    torch.testing.assert_close(moment_distance(z), pairwise_distance(z))


def test_known_value():
    """Means 1 and 4, variances 2 and 8 give 3² + 6²."""
    z = torch.tensor([[[0.0], [2.0]], [[2.0], [6.0]]])
    assert moment_distance(z).item() == 45


def test_loss_is_mean_risk_plus_weighted_distance():
    coral = CORAL(penalty=3.0)
    state, problem = toy(coral)
    (batch,) = batches()
    model = problem.model(state.params, state)
    z = torch.stack([model.features(x) for x in batch.x])
    loss = coral.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["penalty"], pairwise_distance(z))
    torch.testing.assert_close(loss.value, model.risks(batch).mean() + 3 * pairwise_distance(z))


def test_rotation_that_keeps_both_moments_gives_zero_distance():
    z = torch.tensor([[[1.0, 0], [-1, 0], [0, 1], [0, -1]]])
    turned = z @ torch.tensor([[0.6, 0.8], [-0.8, 0.6]])
    assert moment_distance(torch.cat([z, turned])) < 1e-12
    assert moment_distance(torch.cat([z, 2 * z])) > 0.1


def test_gradient_decreases_the_distance_of_the_features():
    coral = CORAL(penalty=1e4)
    state, problem = toy(coral)
    (batch,) = batches()
    before = coral.loss(problem.model(state.params, state), batch, state).metrics["penalty"]
    for _ in range(20):
        state, metrics = coral.step(state, [batch], problem)
    assert metrics["penalty"] < before / 2


@pytest.mark.parametrize("size", [1, B])
def test_one_domain_gives_erm(size):
    (batch,) = batches(domains=1, size=size)
    state, problem = toy(CORAL(), domains=1)
    found, _ = CORAL().step(state, [batch], problem)
    expected, _ = ERM().step(state, [batch], problem)
    torch.testing.assert_close(found.params, expected.params)


def test_one_sample_per_domain_raises():
    state, problem = toy(CORAL())
    (batch,) = batches(size=1)
    with pytest.raises(UsageError, match="at least 2 samples"):
        CORAL().step(state, [batch], problem)


def test_labels_can_be_probabilities():
    state, problem = toy(CORAL())
    (batch,) = batches()
    soft = Batch(batch.x, torch.nn.functional.one_hot(batch.y, 4).double())
    assert soft.y.shape == (K, B, 4)
    hard, same = (CORAL().step(state, [given], problem)[0] for given in (batch, soft))
    torch.testing.assert_close(hard.params, same.params)
