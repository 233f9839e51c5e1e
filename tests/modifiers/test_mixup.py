"""Mixup between domains."""

import pytest
import torch
from scipy.stats import kstest
from support import C, K, assert_close, batches, toy

from pogm import ERM, Mixup
from pogm.core import random
from pogm.core.batch import Batch


def mixed(batch, seed=0, **options):
    return Mixup(**options).batch(batch, random.key(seed), C)


def test_every_domain_is_mixed_with_another_by_one_share():
    (batch,) = batches()
    after = mixed(batch, alpha=1.0)
    partners = []
    for i in range(K):
        for j in range(K):
            share = ((after.x[i] - batch.x[j]) / (batch.x[i] - batch.x[j]))[0, 0] if i != j else None
            if share is not None and torch.allclose(after.x[i], share * batch.x[i] + (1 - share) * batch.x[j]):
                partners.append(j)
                assert 0 <= share <= 1
    assert sorted(partners) == list(range(K)), "a cycle through all domains"


def test_labels_become_the_same_mixture():
    (batch,) = batches()
    after = mixed(batch)
    assert after.y.shape == (*batch.y.shape, C)
    torch.testing.assert_close(after.y.sum(-1), torch.ones_like(after.y[..., 0]))


def test_cross_entropy_of_mixed_labels_is_the_mixture_of_cross_entropies():
    state, problem = toy(ERM())
    (batch,) = batches(domains=2)
    after = mixed(batch, alpha=1.0)
    model = problem.model(state.params, state)
    share = random.beta(random.fold(random.key(0), 1), 1.0, (2,))
    swapped = Batch(after.x, batch.y.flip(0))
    expected = share * model.losses(Batch(after.x, batch.y)).mean(1)
    expected = expected + (1 - share) * model.losses(swapped).mean(1)
    soft = Batch(after.x, after.y.double())
    torch.testing.assert_close(model.risks(soft), expected, rtol=1e-6, atol=1e-6)


def test_one_domain_is_unchanged():
    (batch,) = batches(domains=1)
    assert_close(mixed(batch).x, batch.x, 1e-12)


def test_steps_have_different_mixtures():
    (batch,) = batches()
    assert not torch.equal(mixed(batch, seed=0).x, mixed(batch, seed=1).x)


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_shares_have_a_beta_distribution_one_per_pair(alpha):
    """The share is measured from the result of many domains."""
    count = 2000
    x = torch.arange(count, dtype=torch.float64).reshape(count, 1, 1).expand(count, 2, 1)
    after = mixed(Batch(x, torch.zeros(count, 2, dtype=torch.int64)), alpha=alpha).x
    order = random.permutation(random.fold(random.key(0), 0), count)
    partner = order.roll(-1)[order.argsort()]
    shares = 1 - (after - x) / (x[partner] - x)
    torch.testing.assert_close(shares[:, 0], shares[:, 1])
    assert kstest(shares[:, 0, 0], "beta", (alpha, alpha)).pvalue > 1e-3
