"""Property tests of the paper's Lemmas 1 and 4, on the functions that compute the measurements.

The text of the paper is not available here. The specification states Lemma 1 as "mean >= min" and Lemma 4 as "outside
the hull implies the stated inequality". The inequalities below are our reading of them (docs/theory.md).
"""

import math

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pogm.benchmark.results.measurements import Measured, alignment_variances, alignments, hull, worst
from pogm.pareto import alignment, gramian, solve
from pogm.pareto.hull import nearest_mixture

without_deadline = settings(deadline=None, max_examples=150, derandomize=True)
RADII = (0.05, 0.5, 0.9)


@st.composite
def trajectories(draw: st.DrawFn, least: int = 2) -> torch.Tensor:
    """Draw K trajectories in few or many dimensions, of equal or very different lengths: [K, P] in float64."""
    K, P = draw(st.integers(least, 6)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    h = torch.randn(K, P, generator=generator, dtype=torch.float64) + draw(st.sampled_from((0.0, 1.0)))
    if draw(st.booleans()):
        h = h * 10 ** (-2 * torch.rand(K, 1, generator=generator, dtype=torch.float64))
    if draw(st.booleans()):
        h[-1] = h[0]  # two equal domains
    return h * draw(st.sampled_from((1e-4, 1.0, 1e4)))


def record(h: torch.Tensor, step: torch.Tensor, targets: int = 0) -> Measured:
    """Build one measured round, as a probe records it: cosines and the Gramian, not the vectors."""
    K = len(h) - targets
    cosines = (h[:K] @ step) / (h[:K].norm(dim=1) * step.norm())
    names = tuple("ABCDEFGH")
    ones = [[1.0] * K]
    return Measured(
        names[:K],
        names[K : K + targets],
        [1],
        [cosines.tolist()],
        ones,
        ones,
        [step.square().sum().item()],
        [math.nan],
        [gramian(h).tolist()],
    )


# Lemma 1: the mean alignment over domains is at least the worst one, with equality only if all are equal.


@without_deadline
@given(trajectories(), st.integers(0, 1000))
def test_lemma_1_mean_alignment_is_at_least_the_worst_and_their_distance_is_bounded_by_the_variance(h, seed):
    """min_i U_i <= mean_i U_i <= min_i U_i + sqrt((K − 1) Var U), so the two are equal iff the variance is 0.

    U_i = h_i·d for any step d. The upper bound (Samuelson's inequality) connects Lemma 1 with the quantity of
    Theorem 2. U and Var U are what `alignments` and `alignment_variances` recover from a record.
    """
    step = torch.randn(h.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    m = record(h, step)
    (found,), (variance,) = alignments(m), alignment_variances(m)
    scale = (h.norm(dim=1).max() * step.norm()).item()
    assert found == pytest.approx((h @ step).tolist(), abs=1e-12 * scale)
    mean, least = sum(found) / len(found), min(found)
    assert mean >= least - 1e-12 * scale
    assert mean - least <= math.sqrt((len(h) - 1) * variance) + 1e-9 * scale
    assert math.sqrt(variance) <= max(found) - least + 1e-12 * scale, "no variance without a difference"


@without_deadline
@given(trajectories(), st.sampled_from(RADII))
def test_lemma_1_holds_for_the_direction_of_pogm_whose_worst_alignment_is_p_star(h, radius):
    """mean_i h_i·d* >= min_i h_i·d* = p*, with d* of `solve`; and p* is what `worst` reports."""
    G = gramian(h)
    solution = solve(G, radius)
    assume(not solution.stationary)
    unit = G.diagonal().mean()
    aligned = alignment(G, solution.weights) / unit
    assert aligned.mean() >= aligned.min() - 1e-12
    assert aligned.min().item() == pytest.approx((solution.worst / unit).item(), abs=1e-7)
    (reported,) = worst(record(h, h.mean(0)), radius)
    assert reported == pytest.approx(aligned.min().item(), abs=1e-7)
    assert aligned.mean() >= reported - 1e-7


@without_deadline
@given(trajectories(least=3), st.sampled_from(RADII))
def test_lemma_1_equality_holds_among_the_domains_that_pogm_weighs(h, radius):
    """Domains with a positive weight in the mixture π are equally aligned with d*: among them mean equals min."""
    G = gramian(h)
    solution = solve(G, radius)
    assume(not solution.stationary)
    aligned = alignment(G, solution.weights)[solution.mixture > 1e-6] / G.diagonal().mean()
    assert aligned.mean().item() == pytest.approx(aligned.min().item(), abs=1e-6)


# Lemma 4: outside the hull, a hyperplane separates the held-out domain from the training domains.


@st.composite
def with_target(draw: st.DrawFn) -> torch.Tensor:
    """Draw trajectories with that of a held-out domain in the last row."""
    h = draw(trajectories())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scale = h.norm(dim=1).mean() * 10 ** draw(st.floats(-1, 1)) / math.sqrt(h.shape[1])
    return torch.cat([h, scale * torch.randn(1, h.shape[1], generator=generator, dtype=torch.float64)])


@without_deadline
@given(with_target())
@example(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=torch.float64))
@example(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
def test_lemma_4_outside_the_hull_a_hyperplane_separates_the_target_from_all_sources(h):
    """(h_T − p)·h_i <= (h_T − p)·p < (h_T − p)·h_T for every i, with p the projection of h_T onto the hull.

    p comes from `nearest_mixture`, and the distance ‖h_T − p‖/‖h_T‖ is what `hull` reports. The first inequality is
    the optimality condition of the projection: it fails for any other point of the hull.
    """
    sources, target, G = h[:-1], h[-1], gramian(h)[None]
    K = len(sources)
    _, mixture = nearest_mixture(G[:, :K, :K], G[:, :K, K], G[:, K, K])
    assert mixture.min() >= 0
    assert mixture.sum().item() == pytest.approx(1)
    p = mixture[0] @ sources
    normal = target - p
    ((position,),) = hull(record(h, sources.mean(0), targets=1))
    scale = (sources - target).square().sum(1).mean().sqrt().item()
    assert position.distance * target.norm().item() == pytest.approx(normal.norm().item(), abs=2e-6 * scale)
    assert ((sources - p) @ normal).max().item() <= 1e-6 * scale * normal.norm().item() + 1e-12 * scale**2
    if position.distance > 0:
        assert normal @ p < normal @ target


@without_deadline
@given(with_target())
def test_lemma_4_outside_the_hull_the_worst_case_guarantee_does_not_cover_the_target(h):
    """If the hull distance is positive, some direction d has h_T·d < min_i h_i·d: d = p − h_T is one."""
    sources, target, G = h[:-1], h[-1], gramian(h)[None]
    K = len(sources)
    ((position,),) = hull(record(h, sources.mean(0), targets=1))
    assume(position.distance > 1e-3)
    _, mixture = nearest_mixture(G[:, :K, :K], G[:, :K, K], G[:, K, K])
    d = mixture[0] @ sources - target
    assert target @ d < (sources @ d).min()


@without_deadline
@given(trajectories(), st.integers(0, 1000), st.sampled_from(RADII))
def test_lemma_4_inside_the_hull_the_worst_case_guarantee_covers_the_target(h, seed, radius):
    """If h_T = Σ_i π_i h_i, the hull distance is 0 and h_T·d >= min_i h_i·d for every d, so h_T·d* >= p*."""
    shares = torch.distributions.Dirichlet(torch.full((len(h),), 0.7, dtype=torch.float64))
    torch.manual_seed(seed)
    target = shares.sample() @ h
    unit = h.square().sum(1).mean()
    assume(target.norm() > 1e-3 * unit.sqrt())
    m = record(torch.cat([h, target[None]]), h.mean(0), targets=1)
    ((position,),) = hull(m)
    assert position.distance * target.norm().item() <= 1e-5 * unit.sqrt().item()
    solution = solve(gramian(h), radius)
    assume(not solution.stationary)
    d = solution.weights @ h
    (reported,) = worst(m, radius)
    assert (target @ d / unit).item() >= reported - 1e-7
