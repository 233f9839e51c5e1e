"""IB-ERM."""

import pytest
import torch
from support import B, K, assert_close, batches, steps, toy

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.algorithms.ib_erm import IBERM
from pogm.algorithms.penalties import feature_variance


def plain_variance(z):
    """Return the mean variance of the features, entry by entry."""
    total = 0.0
    for domain in z:
        for feature in domain.T:
            mean = sum(feature) / len(feature)
            total += sum((value - mean) ** 2 for value in feature) / (len(feature) - 1)
    return total / (z.shape[0] * z.shape[2])


def test_loss_is_mean_risk_plus_variance_of_the_features():
    ib = IBERM(penalty=7.0, penalty_anneal_iters=0)
    state, problem = toy(ib)
    (batch,) = batches()
    model = problem.model(state.params, state)
    variance = plain_variance(torch.stack([model.features(x) for x in batch.x]))
    loss = ib.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["nll"], model.risks(batch).mean())
    torch.testing.assert_close(loss.metrics["penalty"], variance)
    torch.testing.assert_close(loss.value, model.risks(batch).mean() + 7 * variance)


def test_known_value():
    """Variances 2 and 8 of one feature in two domains have the mean 5."""
    assert feature_variance(torch.tensor([[[0.0], [2.0]], [[2.0], [6.0]]])).item() == 5


def test_distance_between_domains_does_not_count():
    """The variance is that within a domain: a shift of a whole domain does not change it."""
    z = torch.randn(K, B, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shifted = z + 10 * torch.arange(K).view(K, 1, 1)
    torch.testing.assert_close(feature_variance(z), feature_variance(shifted))


def test_there_is_no_penalty_before_annealing():
    assert_close(steps(IBERM(penalty=1e3, penalty_anneal_iters=3), 3).params, steps(ERM(), 3).params)
    early, late = (steps(IBERM(penalty=1e3, penalty_anneal_iters=3), count).params for count in (3, 4))
    assert not torch.allclose(early["features.0.weight"], late["features.0.weight"])


def test_penalty_shrinks_the_variance():
    ib = IBERM(penalty=100.0, penalty_anneal_iters=0)
    state, problem = toy(ib)
    (batch,) = batches()
    values = []
    for _ in range(30):
        state, metrics = ib.step(state, [batch], problem)
        values.append(metrics["penalty"])
    assert values[-1] < values[0] / 5


def test_one_sample_per_domain_raises():
    state, problem = toy(IBERM())
    with pytest.raises(UsageError, match="at least 2 samples"):
        IBERM().step(state, batches(size=1), problem)
