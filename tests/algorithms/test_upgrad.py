"""UPGrad: the mean of trajectories that are projected on the dual cone."""

import torch
from scipy.optimize import nnls
from support import C, K, batches, toy

from pogm.algorithms.upgrad import UPGrad
from pogm.core.batch import Batch


def test_a_round_moves_along_the_mean_of_the_projected_trajectories():
    """Compare with projections of the trajectories by non-negative least squares."""
    method = UPGrad(meta_lr=1.0, inner_steps=2)
    state, problem = toy(method)
    made = [Batch(one.x[:1].expand_as(one.x), (one.y[:1] + torch.arange(K)[:, None]) % C) for one in batches(2)]
    flat = torch.cat([leaf.flatten(1) for leaf in method.copies(state, made, problem).trajectories.values()], dim=1)
    assert (flat @ flat.T).min() < 0, "the domains give the same images different labels: they conflict"
    projected = [h + flat.T @ torch.from_numpy(nnls(flat.T.numpy(), -h.numpy())[0]) for h in flat]
    after, metrics = method.step(state, made, problem)
    moved = torch.cat([(after.params[n] - state.params[n]).flatten() for n in state.params])
    torch.testing.assert_close(moved, torch.stack(projected).mean(0), rtol=1e-8, atol=1e-10)
    assert metrics["worst"] >= -1e-12
