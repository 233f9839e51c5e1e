"""Degenerate problems (section 1.6 of the specification)."""

import pytest
import torch
from pareto_inputs import SCALES, double, draw, gram
from torch.testing import assert_close

from pogm.pareto import gap, solve

everywhere = pytest.mark.parametrize("scale", SCALES)
few_and_many = pytest.mark.parametrize("copies", [1, 5])  # of the updates; below and above eight domains


@pytest.mark.parametrize("K", [1, 2, 3, 12])
def test_zero_updates_give_a_zero_step_and_the_uniform_mixture(K):
    solution = solve(torch.zeros(K, K), 0.5)
    assert_close(solution.mixture, torch.full((K,), 1 / K).double())
    assert_close(solution.weights, torch.full((K,), 1 / K).double())
    assert solution.worst == solution.gap == 0
    assert solution.stationary


@everywhere
@few_and_many
def test_zero_update_is_excluded_from_the_minimum_but_not_from_the_mean(scale, copies):
    H = scale * double([[1, 0.2], [0, 0], [0.3, 1]]).repeat(copies, 1)
    solution = solve(gram(H), 0.5)
    assert (solution.mixture[1::3] == 0).all()
    rest = H[(H != 0).any(1)]
    mean = H.mean(0)
    alone = solve(gram(rest), 0.5, centre=(rest @ mean, mean @ mean))
    assert_close(solution.weights @ H, mean + alone.weights @ rest, rtol=1e-9, atol=1e-9 * scale)
    assert solution.gap <= 1e-10 * scale**2
    assert_close(solution.worst, alone.worst, rtol=1e-9, atol=0)


@everywhere
def test_very_short_update_is_not_a_zero_update(scale):
    H = scale * double([[1, 0], [1e-9, 1e-9]])
    solution = solve(gram(H), 0.5)
    assert_close(solution.mixture, torch.tensor([0.0, 1.0]).double(), atol=1e-8, rtol=0)
    assert not solution.stationary


@everywhere
@few_and_many
def test_updates_with_mean_zero_give_a_zero_step(scale, copies):
    H = scale * double([[1, 0.3], [-0.4, 0.1], [-0.6, -0.4]]).repeat(copies, 1)
    solution = solve(gram(H), 0.5)
    assert_close(solution.weights @ H, torch.zeros(2).double(), atol=1e-15 * scale, rtol=0)
    assert_close(solution.mixture, torch.full((3 * copies,), 1 / (3 * copies)).double())
    assert solution.stationary
    assert solution.gap == 0


@everywhere
@few_and_many
def test_stationary_problem_keeps_the_mean(scale, copies):
    H = scale * double([[1, 0], [-1, 0], [0, 1]]).repeat(copies, 1)
    solution = solve(gram(H), 0.5)
    assert solution.stationary
    assert_close(solution.weights, torch.full((3 * copies,), 1 / (3 * copies)).double())
    assert_close((solution.mixture @ H).norm().item(), 0.0, atol=1e-6 * scale, rtol=0)
    assert solution.gap <= 1e-10 * scale**2
    assert_close(solution.worst.item(), 0.0, atol=1e-10 * scale**2, rtol=0)


@few_and_many
def test_stationary_problem_can_project_the_mean(copies):
    H = double([[1, 0, 0.5], [-1, 0, -0.5], [0, 1, 0], [0.6, 0.1, 0]]).repeat(copies, 1)
    solution = solve(gram(H), 0.9, stationary="project")
    mean, d = H.mean(0), solution.weights @ H
    assert solution.stationary
    assert (H @ mean).min() < -1e-2
    assert (H @ d).min() >= -1e-9  # no negative alignment
    assert (d - mean).norm() <= 0.9 * mean.norm()  # in the ball
    axis = H[0] / H[0].norm()
    assert_close(d, mean - (mean @ axis) * axis, atol=1e-8, rtol=0)  # the nearest such step


def test_projection_has_no_effect_if_not_stationary():
    G = gram(draw("plain", 4, 6, seed=0))
    assert_close(solve(G, 0.5, stationary="project").weights, solve(G, 0.5).weights)


def test_zero_inside_the_hull_is_not_stationary_for_a_small_ball():
    H = double([[1, 0], [-0.4, 0.8], [-0.4, -0.7]])
    assert not solve(gram(H), 0.9).stationary
    assert solve(gram(H), 1.1).stationary  # r > 1: always


@few_and_many
@everywhere
def test_duplicates_change_the_mixture_but_not_the_step(copies, scale):
    H = scale * draw("plain", 3, 5, seed=2)
    doubled = H.repeat_interleave(2 * copies, dim=0)
    d = solve(gram(doubled), 0.5).weights @ doubled
    assert_close(d, solve(gram(H), 0.5).weights @ H, rtol=1e-8, atol=1e-8 * scale)


def test_step_does_not_depend_on_the_order_of_duplicates():
    H = double([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    for order in ([0, 1, 2], [2, 0, 1], [0, 2, 1]):
        d = solve(gram(H[order]), 0.5).weights @ H[order]
        assert_close(d, torch.tensor([0.704124, 0.704124, 0]).double(), atol=1e-6, rtol=0)


@everywhere
def test_one_domain_gives_a_longer_step(scale):
    solution = solve(torch.tensor([[scale**2]], dtype=torch.float64), 0.5)
    assert_close(solution.mixture, torch.ones(1).double())
    assert_close(solution.weights, torch.tensor([1.5]).double())
    assert not solution.stationary


@everywhere
@pytest.mark.parametrize("K", [2, 5, 12])
def test_equal_updates_have_a_uniform_mixture(scale, K):
    H = scale * draw("plain", 1, 6, seed=3).repeat(K, 1)
    solution = solve(gram(H), 0.5)
    assert_close(solution.mixture, torch.full((K,), 1 / K).double())
    assert_close(solution.weights @ H, 1.5 * H[0])


@pytest.mark.parametrize("K", [3, 12])
def test_radius_zero_gives_the_mean(K):
    solution = solve(gram(draw("plain", K, 6, seed=4)), 0.0)
    assert (solution.mixture == 1 / K).all()
    assert (solution.weights == 1 / K).all()
    assert solution.gap == 0
    assert not solution.stationary
    assert_close(solution.worst, gram(draw("plain", K, 6, seed=4)).mean(1).min())


def test_conflict_that_cannot_be_resolved_is_solved():
    H = double([[1, 0.2, 0], [-0.8, 0.1, 0], [0.3, 0.1, 0.5]])
    solution = solve(gram(H), 0.5)
    assert solution.worst < 0
    assert not solution.stationary
    assert_close((H @ (solution.weights @ H)).min(), solution.worst)


@pytest.mark.parametrize("K", [3, 12])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_updates_that_are_not_finite_give_nan_weights(K, value):
    H = draw("plain", K, 6, seed=5)
    H[1, 2] = value
    assert solve(gram(H), 0.5).weights.isnan().any()


def test_parts_of_a_solution_are_consistent():
    G = gram(draw("plain", 4, 6, seed=6, count=5))
    solution = solve(G, 0.5)
    assert_close(gap(G, solution.mixture, 0.5), solution.gap)
    assert solution.stationary.dtype == torch.bool
    assert solution.worst.shape == solution.gap.shape == solution.stationary.shape == (5,)


def test_unknown_stationary_option_raises():
    with pytest.raises(ValueError, match=r'expected stationary="keep" or "project", found .stop.'):
        solve(torch.eye(2), 0.5, stationary="stop")
