"""SAND-mask."""

import math
from statistics import variance

import torch
from support import K, assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM
from pogm.algorithms.sand_mask import SANDMask, _variance
from pogm.core.batch import Batch


def test_gradient_is_the_masked_mean():
    """Compare with a loop over entries."""
    method = SANDMask(tau=0.4, steepness=1e-3)
    state, problem = toy(method)
    (batch,) = batches()
    found, loss = method.gradient(state, batch, problem)

    def risk(params, k):
        return problem.model(params, state).losses(Batch(batch.x[k : k + 1], batch.y[k : k + 1])).mean()

    gradients = [grad(risk)(state.params, k) for k in range(K)]
    soft = []
    for name, leaf in found.items():
        columns = torch.stack([g[name].flatten() for g in gradients]).T.tolist()
        mask = []
        for column in columns:
            agreed = abs(sum((g > 0) - (g < 0) for g in column)) / K
            mask.append(max(0.0, math.tanh(1e-3 / variance(column) * (agreed - 0.4))))
        share = sum(mask) / len(mask)
        expected = [sum(c) / K * m / (1e-10 + share) for c, m in zip(columns, mask, strict=True)]
        torch.testing.assert_close(leaf.flatten(), torch.tensor(expected, dtype=torch.float64))
        soft += [m for m in mask if 0.01 < m < 0.99]
    assert soft, "the mask is not only zeros and ones"
    torch.testing.assert_close(loss.value, problem.model(state.params, state).risks(batch).mean())


def test_published_default_does_not_train_and_ours_does():
    before, _ = toy(SANDMask())
    assert_close(steps(SANDMask.preset("published"), 3).params, before.params, 0.0)
    after = steps(SANDMask(), 3)
    assert all(not torch.equal(after.params[name], leaf) for name, leaf in before.params.items())


def test_one_domain_gives_erm():
    assert_close(steps(SANDMask(), 4, domains=1).params, steps(ERM(), 4, domains=1).params)


def test_zero_variance_gives_finite_masks():
    """With v = 0, k / v is infinite; with τ = 0 and zero gradients the argument of tanh is NaN."""
    equal = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    torch.testing.assert_close(SANDMask(tau=0.5)._mask(equal), torch.tensor([4.0, 0.0]))
    assert SANDMask(tau=0.0)._mask(torch.zeros(3, 2)).tolist() == [0.0, 0.0]


def test_variance_is_that_of_torch_and_exactly_zero_for_equal_entries():
    g = torch.randn(3, 1000)
    torch.testing.assert_close(_variance(g), g.var(0))
    assert not _variance(g[:1].expand(3, -1)).any()
