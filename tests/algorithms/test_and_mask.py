"""AND-mask."""

import pytest
import torch
from support import K, assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM
from pogm.algorithms.and_mask import ANDMask
from pogm.core.batch import Batch


def by_domain(state, problem, batch):
    """Return the gradient of each domain, computed in a loop."""

    def risk(params, x, y):
        return problem.model(params, state).losses(Batch(x[None], y[None])).mean()

    return [grad(risk)(state.params, x, y) for x, y in zip(batch.x, batch.y, strict=True)]


@pytest.mark.parametrize("tau", [0.3, 0.5, 1.0])
def test_gradient_is_the_mean_where_signs_agree(tau):
    """Compare with a loop over entries."""
    method = ANDMask(tau=tau)
    state, problem = toy(method)
    (batch,) = batches()
    found, loss = method.gradient(state, batch, problem)
    gradients = by_domain(state, problem, batch)
    for name, leaf in found.items():
        columns = torch.stack([g[name].flatten() for g in gradients]).T.tolist()
        kept = [abs(sum((g > 0) - (g < 0) for g in column)) / K >= tau - 1e-6 for column in columns]
        share = sum(kept) / len(kept)
        expected = [sum(c) / K * k / (1e-10 + share) for c, k in zip(columns, kept, strict=True)]
        torch.testing.assert_close(leaf.flatten(), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(loss.value, problem.model(state.params, state).risks(batch).mean())


def test_tau_zero_gives_erm():
    assert_close(steps(ANDMask(tau=0.0), 5).params, steps(ERM(), 5).params, 1e-8)


def test_three_equal_signs_pass_at_tau_one():
    """Three times 1/3 is not exactly 1 in float32, which the tolerance allows for."""
    g = torch.tensor([[1.0, 1.0], [2.0, -1.0], [3.0, 2.0]])
    torch.testing.assert_close(ANDMask(tau=1.0)._mask(g), torch.tensor([2.0 / 0.5, 0.0]))


def test_opposite_gradients_do_not_change_the_weights():
    g = torch.tensor([[1.0, -3.0], [-2.0, 1.0], [3.0, 1.0]])
    assert (ANDMask(tau=1.0)._mask(g) == 0).all()


def test_one_domain_gives_erm():
    """This holds if no gradient is zero."""
    method = ANDMask()
    state, problem = toy(method, domains=1)
    (batch,) = batches(domains=1)
    found, _ = method.gradient(state, batch, problem)
    assert_close(found, ERM().gradient(state, batch, problem)[0], 1e-8)


def test_weight_decay_changes_masked_entries():
    state, problem = toy(ANDMask(), weight_decay=0.1)
    (batch,) = batches()
    masked, _ = ANDMask().gradient(state, batch, problem)
    after, _ = ANDMask().step(state, [batch], problem)
    still = masked["head.weight"] == 0
    assert still.any()
    assert (after.params["head.weight"] != state.params["head.weight"])[still].all()


def test_batch_norm_statistics_are_the_mean_over_domains():
    state, problem = toy(ANDMask(), batch_norm=True)
    (batch,) = batches()
    after, _ = ANDMask().step(state, [batch], problem)
    alone = [ERM().step(state, [Batch(batch.x[k : k + 1], batch.y[k : k + 1])], problem)[0] for k in range(K)]
    for name in problem.live:
        left = torch.stack([one.buffers[name].double() for one in alone])
        torch.testing.assert_close(after.buffers[name].double(), left.mean(0))
