import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pareto_inputs import EXAMPLES, KINDS, RADII, double, draw, gram, relative, rounding, updates
from scipy.optimize import minimize
from torch.testing import assert_close

from pogm.pareto import gap, mixture, solve

calmly = settings(deadline=None, max_examples=100, derandomize=True)
# For tests whose problems the active-set solver does not solve, because they are batched or have a radius in a tensor.
general_only = pytest.mark.parametrize("solver", ["general"], indirect=True)


def objective(G, π, radius):
    b = G.mean(-1)
    return π @ b + radius * b.mean().sqrt() * torch.einsum("...i,ij,...j->...", π, G, π).clamp(min=0).sqrt()


def slow_reference(G, radius):
    """Return min q by a general optimiser from several starting points."""
    G = (G / G.diagonal().mean()).numpy()
    K = len(G)
    b = G.mean(1)
    s = np.sqrt(b.mean())

    def value(π):
        return b @ π + radius * s * np.sqrt(max(π @ G @ π, 0.0))

    def gradient(π):
        return b + radius * s * G @ π / np.sqrt(max(π @ G @ π, 1e-20))

    starts = [np.full(K, 1 / K), *(0.9 * np.eye(K) + 0.1 / K)]
    on_simplex = {"type": "eq", "fun": lambda π: π.sum() - 1, "jac": lambda π: np.ones(K)}
    options = {"ftol": 1e-13, "maxiter": 500}
    found = [
        minimize(value, x, jac=gradient, bounds=[(0, 1)] * K, constraints=on_simplex, method="SLSQP", options=options)
        for x in starts
    ]
    return min(one.fun for one in found if abs(one.x.sum() - 1) < 1e-9)


def gram_of_two_ranks(kind, K, dimensions, count):
    """Return problems [2 · count, K, K] of updates with these two dimensions."""
    return torch.cat([gram(draw(kind, K, dimension, seed=K, count=count)) for dimension in dimensions])


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name):
    H, radius, expected, worst, _ = EXAMPLES[name]
    G = gram(double(H))
    solution = solve(G, radius)
    if expected is not None:
        assert_close(solution.mixture, torch.tensor(expected, dtype=torch.float64), atol=2e-6, rtol=0)
    assert_close(solution.worst.item(), worst, atol=1e-6, rtol=0)
    assert_close(objective(G, solution.mixture, radius).item(), worst, atol=1e-6, rtol=0)
    assert not solution.stationary


def test_duplicates_share_the_weight_of_one_update():
    π = mixture(gram(double(EXAMPLES["duplicates"][0])), 0.5)
    assert_close(π[:2].sum().item(), 0.091752, atol=1e-6, rtol=0)
    assert_close(π[2].item(), 0.908248, atol=1e-6, rtol=0)


@calmly
@given(updates(largest=8), st.sampled_from((*RADII, 1.5)))
def test_mixture_is_on_the_simplex_and_optimal(H, radius):
    G = gram(H)
    solution = solve(G, radius)
    assert (solution.mixture >= 0).all()
    assert_close(solution.mixture.sum().item(), 1.0)
    assert relative(solution.gap, G) <= 1e-10 + rounding(G, solution.mixture)
    again = relative(gap(G, solution.mixture, radius), G)  # of G, because a gap of zero is rounding error in any unit
    assert_close(again, relative(solution.gap, G), rtol=1e-7, atol=1e-13)


@calmly
@given(updates(), st.sampled_from(RADII), st.integers(0, 1000))
def test_no_mixture_in_a_large_sample_is_better(H, radius, seed):
    G = gram(H)
    generator = np.random.default_rng(seed)
    sample = torch.from_numpy(generator.dirichlet(np.full(len(G), 0.3), size=2000))
    best = objective(G, mixture(G, radius), radius)
    unit = G.diagonal().mean()
    assert (objective(G, sample, radius) - best).min() >= -1e-9 * unit


@pytest.mark.parametrize("kind", KINDS)
def test_an_independent_solver_finds_no_better_value(kind):
    for seed in range(3):
        G = gram(draw(kind, 4, 5, seed))
        ours = relative(objective(G, mixture(G, 0.5), 0.5), G).item()
        theirs = slow_reference(G, 0.5)
        assert ours <= theirs + 1e-9
        assert ours >= theirs - 1e-5 or kind == "near opposites"  # where it may stop early


@general_only
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [2, 3, 5, 8])
def test_relative_gap_is_below_1e_10_up_to_eight_domains(kind, K):
    G = gram_of_two_ranks(kind, K, (max(2, K // 2), 3 * K), count=40)
    for radius in RADII:
        π = mixture(G, radius)
        assert (relative(gap(G, π, radius), G) <= 1e-10 + rounding(G, π)).all()


@general_only
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [9, 16, 32, 64])
def test_relative_gap_is_below_1e_8_beyond_eight_domains(kind, K):
    G = gram_of_two_ranks(kind, K, (K // 2, 2 * K), count=3)
    radius = torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64)[:, None]
    π = mixture(G, radius)
    assert (relative(gap(G, π, radius), G) <= 1e-8 + rounding(G, π)).all()


@general_only
@pytest.mark.parametrize("kind", KINDS)
def test_interior_solver_agrees_with_face_enumeration(kind):
    from pogm.pareto import interior
    from pogm.pareto.face_enumeration import list_faces, solve_on_faces
    from pogm.pareto.problem import normalise

    problem = normalise(gram(draw(kind, 6, 9, seed=3, count=20)), 0.5)
    listed = solve_on_faces(problem.G, problem.target, problem.radius, list_faces(problem.G))
    iterated = interior.solve_interior(problem.G, problem.target, problem.radius)
    products = [π.unsqueeze(-2) @ problem.G for π in (listed, iterated)]  # π itself may not be unique
    assert_close(products[0], products[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("K", [3, 12])
def test_mixture_does_not_depend_on_the_scale(K):
    G = gram(draw("plain", K, 10, seed=0))
    for scale in (1e-24, 1e-12, 1e12, 1e24):
        assert_close(mixture(scale * G, 0.5), mixture(G, 0.5), atol=1e-12, rtol=0)


@pytest.mark.parametrize("K", [3, 12])
def test_batch_equals_single_problems(K):
    G = gram(draw("plain", K, 10, seed=1, count=6)).reshape(2, 3, K, K)
    radius = torch.tensor([[0.05, 0.1, 0.5], [0.5, 0.7, 0.9]], dtype=torch.float64)
    together = solve(G, radius)
    for i in range(2):
        for j in range(3):
            alone = solve(G[i, j], radius[i, j].item())
            for batched, single in zip(together, alone, strict=True):
                assert_close(batched[i, j], single, atol=1e-10, rtol=0)


@general_only
@pytest.mark.parametrize("K", [3, 12])
@pytest.mark.parametrize("stationary", ["keep", "project"])
def test_vmap_equals_a_loop(K, stationary):
    G = gram(draw("plain", K, 10, seed=2, count=4))
    G[-1, :, :] = gram(torch.cat([draw("plain", K - 2, 10, seed=3), torch.eye(10)[:1], -torch.eye(10)[:1]]).double())
    radius = torch.tensor([0.1, 0.5, 0.9, 1.5], dtype=torch.float64)

    def one(G, radius):
        return solve(G, radius, stationary=stationary)

    mapped = torch.func.vmap(one)(G, radius)
    for i in range(4):
        for batched, single in zip(mapped, one(G[i], radius[i]), strict=True):
            assert_close(batched[i], single, atol=1e-8, rtol=0)
    assert mapped.stationary.tolist() == [False, False, False, True]


def test_gap_bounds_the_loss_of_a_mixture_that_is_not_optimal():
    G = gram(draw("plain", 4, 6, seed=5))
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    loss = objective(G, uniform, 0.5) - objective(G, mixture(G, 0.5), 0.5)
    assert gap(G, uniform, 0.5) >= loss > 0


def test_gap_of_a_zero_mixture_shows_if_it_is_optimal():
    H = double([[1, 0], [-1, 0], [0, 1]])
    half = torch.tensor([0.5, 0.5, 0], dtype=torch.float64)  # h_π = 0
    assert gap(gram(H), half, 0.5) < 1e-15  # optimal: no step helps both of the first two
    H = double([[1, 0.1], [-1, -0.1], [0, 1], [0.1, -1]])  # 0 is inside the hull: q < 0 elsewhere
    π = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64)
    assert gap(gram(H), π, 0.5) > 1e-3


def test_gap_ignores_zero_updates():
    H = double([[1, 0], [0, 1], [0, 0]])
    π = mixture(gram(H), 0.5)
    assert π[2] == 0
    assert gap(gram(H), π, 0.5) < 1e-15


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_invalid_radius_raises(radius):
    with pytest.raises(ValueError, match=r"expected a relative radius r >= 0, found"):
        mixture(torch.eye(3), radius)


def test_matrix_that_is_not_square_raises():
    with pytest.raises(ValueError, match=r"expected a Gramian.*found shape \(3, 2\)"):
        mixture(torch.ones(3, 2), 0.5)


def test_centre_of_another_size_raises():
    with pytest.raises(ValueError, match=r"expected a centre.*3 updates.*\(2,\)"):
        mixture(torch.eye(3), 0.5, centre=(torch.ones(2), torch.tensor(1.0)))
