"""PGrad: principal directions of a walk over the domains."""

import pytest
import torch
from support import B, K, assert_close, batches, steps, toy
from torch.testing import assert_close as assert_tensors_close

from pogm import ERM, Batch
from pogm.algorithms.pgrad import PGrad
from pogm.core import random
from pogm.pareto.weightings import principal_weights


def naive_step(displacements, k):
    """Compute the step by a singular value decomposition of the centred points."""
    points = torch.cat([torch.zeros_like(displacements[:1]), displacements])
    _, singular, right = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    values, directions = singular[:k].square(), right[:k]
    signs = torch.where(directions @ displacements[-1] < 0, -1.0, 1.0)
    return displacements[-1].norm() * (values / values.norm() * signs) @ directions


def walk(method, state, batch, problem):
    """Return the displacements of the walk, in a loop over parts and domains."""
    walker, found = state, []
    for part in range(method.splits):
        chosen = slice(part * B // method.splits, (part + 1) * B // method.splits)
        for k in random.permutation(method.random_key(state, 1 + part), K).tolist():
            one = Batch(batch.x[k : k + 1, chosen], batch.y[k : k + 1, chosen])
            walker, _ = ERM().step(walker, [one], problem)
            found.append(torch.cat([(walker.params[n] - leaf).flatten() for n, leaf in state.params.items()]))
    return torch.stack(found), walker


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_step_equals_a_singular_value_decomposition(splits, k):
    method = PGrad(meta_lr=0.3, directions=k, splits=splits)
    state, problem = toy(method)
    (batch,) = batches()
    displacements, walker = walk(method, state, batch, problem)
    after, metrics = method.step(state, [batch], problem)
    moved = torch.cat([(after.params[n] - leaf).flatten() for n, leaf in state.params.items()])
    assert_tensors_close(moved, 0.3 * naive_step(displacements, min(k, len(displacements))), rtol=1e-7, atol=1e-9)
    assert_tensors_close(moved.norm(), 0.3 * displacements[-1].norm(), msg="α times the length of the walk")
    assert_tensors_close(metrics["norm"], displacements[-1].norm())
    assert moved @ displacements[-1] > 0
    assert_close(after.optimizer, walker.optimizer)


def test_inner_optimizer_keeps_its_state_between_steps():
    assert steps(PGrad(splits=2), 3).optimizer["count"] == 3 * 2 * K


def test_walk_along_a_line_is_followed():
    line = torch.tensor([[1.0, 2.0], [2.0, 4.0], [5.0, 10.0]], dtype=torch.float64)
    assert_tensors_close(principal_weights(line @ line.T, 4) @ line, line[-1])


def test_step_of_random_walks_equals_the_decomposition_also_in_a_batch():
    walks = torch.randn(3, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).cumsum(1)
    weights = principal_weights(walks @ walks.mT, 3)
    mapped = torch.func.vmap(lambda G: principal_weights(G, 3))(walks @ walks.mT)
    for one, two, points in zip(weights, mapped, walks, strict=True):
        assert_tensors_close(one @ points, naive_step(points, 3))
        assert_tensors_close(two, one)


def test_minibatch_smaller_than_the_number_of_parts_is_split_into_single_samples():
    state, problem = toy(PGrad(splits=5))
    (batch,) = batches(size=2)
    after, _ = PGrad(splits=5).step(state, [batch], problem)
    assert after.optimizer["count"] == 2 * K


def test_zero_and_nonfinite_walks_have_no_weights():
    for G in (torch.zeros(3, 3, dtype=torch.float64), torch.full((3, 3), torch.nan, dtype=torch.float64)):
        assert principal_weights(G, 4).tolist() == [0, 0, 0]
