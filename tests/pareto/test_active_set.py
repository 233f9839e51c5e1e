"""The active-set solver for one problem on a CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pogm.pareto import active_set, gap, gramian, solve


def general(G, radius):
    """Solve the same problem as a batch of one, which the active-set solver does not support."""
    return solve(G[None], radius)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 30), st.floats(0.01, 1.5), st.floats(-1.0, 1.0), st.integers(0, 10**6))
def test_solution_equals_that_of_the_general_solver(K, dimensions, radius, common, seed):
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(K, dimensions, generator=generator, dtype=torch.float64)
    H = H + common * torch.randn(1, dimensions, generator=generator, dtype=torch.float64)
    G = gramian(H)
    found = active_set.solve_small(G, radius, radius)
    if found is None:
        return
    mixture, weights, worst, _ = (torch.tensor(part, dtype=torch.float64) for part in found)
    unit = G.diagonal().mean()
    assert gap(G, mixture, radius) <= 1e-12 * unit
    reference = general(G, radius)
    torch.testing.assert_close(mixture, reference.mixture[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(weights @ H, reference.weights[0] @ H, rtol=1e-5, atol=1e-6 * float(unit.sqrt()))
    torch.testing.assert_close(worst, reference.worst[0], rtol=0, atol=1e-9 * float(unit))


@pytest.mark.parametrize(
    "H",
    [
        [[1.0, 0.0], [1.0, 0.0]],  # equal
        [[1.0, 0.0], [0.0, 0.0]],  # one zero
        [[1.0, 0.0], [-1.0, 0.0]],  # a mean of zero
        [[0.0, 0.0], [0.0, 0.0]],
        [[1.0, 0.0], [torch.nan, 0.0]],
        [[1.0, 0.0], [torch.inf, 0.0]],
    ],
)
def test_unclear_problems_return_none(H):
    assert active_set.solve_small(gramian(torch.tensor(H)), 0.5, 0.5) is None


def test_most_problems_of_training_are_solved():
    generator = torch.Generator().manual_seed(0)
    for K in (2, 3, 5, 8, 16):
        H = torch.randn(50, K, 100, generator=generator, dtype=torch.float64)
        H = H + 0.5 * torch.randn(50, 1, 100, generator=generator, dtype=torch.float64)
        answered = [active_set.solve_small(gramian(rows), 0.5, 0.5) is not None for rows in H]
        assert sum(answered) >= 45
