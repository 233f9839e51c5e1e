import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pareto_inputs import EXAMPLES, RADII, double, draw, gram, updates
from torch.testing import assert_close

from pogm.pareto import alignment, invariant_weights, solve

calmly = settings(deadline=None, max_examples=100, derandomize=True)


def step(H, radius, **options):
    return invariant_weights(gram(H), radius, **options) @ H


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example[-1]])
def test_worked_examples(name):
    H, radius, _, worst, expected = EXAMPLES[name]
    d = step(double(H), radius)
    assert_close(d, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close((double(H) @ d).min().item(), worst, atol=1e-6, rtol=0)


def test_printed_theorem_is_below_the_optimum_of_its_ball():
    H = double(EXAMPLES["conflict"][0])
    d = step(H, 0.5**0.5, step_radius=0.5)  # paper_mixed, κ = 0.5
    assert_close(d, torch.tensor([0.187235, 0.415259], dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close((H @ d).min().item(), 0.114012, atol=1e-6, rtol=0)


@calmly
@given(updates(largest=8), st.sampled_from(RADII))
def test_step_has_the_guaranteed_properties(H, radius):
    solution = solve(gram(H), radius)
    d, mean = solution.weights @ H, H.mean(0)
    s, unit = mean.norm(), H.square().sum(1).mean()
    # the rounding of ν² (see `rounding`): what is known of the length of the correction
    ν = (solution.mixture @ H).norm() / unit.sqrt()
    close = 1e-9 + 1e-14 / ν.clamp(min=1e-6) ** 2

    assert not solution.stationary
    assert_close((d - mean).norm(), radius * s, atol=0, rtol=close.item())  # on the sphere
    assert (1 - radius - close) * s <= d.norm() <= (1 + radius + close) * s
    assert mean @ d >= (1 - radius) * s**2 - close * unit  # the mean loss goes down
    assert (H @ d).min() >= (H @ mean).min() - close * unit  # never worse aligned than ERM
    assert_close((H @ d).min(), solution.worst, atol=(close * unit).item(), rtol=0)  # no duality gap


@calmly
@given(updates(), st.sampled_from(RADII), st.integers(0, 100))
def test_step_does_not_depend_on_the_order_of_domains(H, radius, seed):
    order = torch.randperm(len(H), generator=torch.Generator().manual_seed(seed))
    π = solve(gram(H), radius).mixture
    ν = ((π @ H).norm() / H.norm(dim=1).mean()).clamp(min=1e-6).item()
    length = H.norm(dim=1).max().item()
    assert_close(step(H[order], radius), step(H, radius), atol=length * (1e-8 + 1e-13 / ν**2), rtol=0)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("K", [3, 12])
def test_weights_do_not_depend_on_the_scale(scale, K):
    H = draw("plain", K, 8, seed=4)
    assert_close(invariant_weights(gram(scale * H), 0.5), invariant_weights(gram(H), 0.5), atol=1e-10, rtol=0)


def test_small_radius_gives_nearly_the_mean():
    H = draw("plain", 4, 6, seed=1)
    assert_close(step(H, 1e-9), H.mean(0), atol=1e-8, rtol=0)


def test_no_step_in_the_ball_has_a_better_worst_alignment():
    H = draw("plain", 4, 3, seed=2)
    mean = H.mean(0)
    worst = (H @ step(H, 0.5)).min()
    noise = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = mean + 0.5 * mean.norm() * noise / noise.norm(dim=1, keepdim=True)
    assert (ball @ H.mT).amin(1).max() <= worst + 1e-12


def test_other_centre_is_added_by_the_caller():
    H, other = draw("plain", 3, 6, seed=6), draw("plain", 1, 6, seed=7)[0]
    solution = solve(gram(H), 0.5, centre=(H @ other, other @ other))
    d = other + solution.weights @ H
    assert_close((d - other).norm(), 0.5 * other.norm())
    assert_close((H @ d).min(), solution.worst)
    assert solution.gap <= 1e-14


def test_mean_as_explicit_centre_gives_the_same_weights():
    H = draw("plain", 3, 6, seed=8)
    mean = H.mean(0)
    pooled = invariant_weights(gram(H), 0.5, centre=(H @ mean, mean @ mean))
    assert_close(pooled + 1 / 3, invariant_weights(gram(H), 0.5), atol=1e-10, rtol=0)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_centre_can_be_much_longer_or_shorter_than_the_updates(scale):
    H, other = draw("plain", 3, 6, seed=6), scale * draw("plain", 1, 6, seed=7)[0]
    d = other + invariant_weights(gram(H), 0.5, centre=(H @ other, other @ other)) @ H
    assert_close((d - other).norm(), 0.5 * other.norm())


def test_zero_centre_gives_zero_weights():
    H = draw("plain", 3, 6, seed=6)
    zero = torch.zeros(6, dtype=torch.float64)
    assert_close(invariant_weights(gram(H), 0.5, centre=(H @ zero, zero @ zero)), torch.zeros(3).double())


def test_alignment_is_the_inner_product_with_the_step():
    H = draw("plain", 4, 6, seed=9)
    c = invariant_weights(gram(H), 0.5)
    assert_close(alignment(gram(H), c), H @ (c @ H))


def test_weights_have_no_gradient():
    H = draw("plain", 3, 6, seed=1).requires_grad_()
    assert not invariant_weights(gram(H), 0.5).requires_grad


def test_float32_gramian_gives_float64_weights():
    assert invariant_weights(gram(draw("plain", 3, 6, seed=1)).float(), 0.5).dtype == torch.float64
