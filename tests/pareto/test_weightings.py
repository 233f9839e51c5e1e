"""Weights of MGDA, CAGrad, PCGrad and UPGrad, compared with their definitions and with TorchJD.

The tests of scale and batches are of all weightings.
"""

import numpy as np
import pytest
import torch
from pareto_inputs import KINDS, SCALES, double, draw, every_weighting, gram, orders
from scipy.optimize import nnls
from torch.testing import assert_close
from torchjd.aggregation import CAGradWeighting, MGDAWeighting, PCGradWeighting, UPGradWeighting
from torchjd.linalg import DualConeProjector

from pogm.pareto import alignment, invariant_weights, length, mixture
from pogm.pareto.weightings import cagrad_weights, mgda_weights, pcgrad_weights, upgrad_weights

kinds = pytest.mark.parametrize("kind", KINDS)
sizes = pytest.mark.parametrize("K", [1, 2, 3, 5, 8, 10])


def unit(G):
    return G / G.diagonal().mean()


@kinds
@sizes
def test_every_update_agrees_with_the_shortest_mixture(kind, K):
    """The point of the hull nearest to 0 has h_i·h_π ≥ ‖h_π‖² for every i."""
    for seed in range(5):
        G = unit(gram(draw(kind, K, 2 * K, seed)))
        weights = mgda_weights(G)
        assert (weights >= 0).all()
        assert_close(weights.sum().item(), 1.0)
        assert alignment(G, weights).min() >= length(G, weights) ** 2 - 1e-9


def test_shortest_mixture_of_two_updates_is_known():
    """The shorter of two parallel updates, the foot of the perpendicular, and zero for opposite updates."""
    assert_close(mgda_weights(gram(double([[1, 0], [3, 0]]))), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert_close(mgda_weights(gram(double([[2, 0], [0, 1]]))), torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert_close(mgda_weights(gram(double([[1, 0], [-3, 0]]))), torch.tensor([0.75, 0.25], dtype=torch.float64))


def test_zero_update_is_the_shortest_mixture():
    weights = mgda_weights(gram(double([[1, 0], [0, 0], [1, 1]])))
    assert weights.tolist() == [0, 1, 0]


def test_worst_mixture_in_a_large_ball_is_the_shortest():
    for seed in range(5):
        G = gram(draw("agreeing", 4, 8, seed))
        assert_close(mixture(G, 1e7), mgda_weights(G), atol=1e-6, rtol=0)


def test_torchjd_approaches_the_shortest_mixture():
    for seed in range(5):
        G = gram(draw("agreeing", 4, 8, seed))
        theirs = MGDAWeighting(epsilon=1e-9, max_iters=1000)(G)
        ours = mgda_weights(G)
        assert length(G, ours) <= length(G, theirs) + 1e-12
        assert_close(ours, theirs, atol=1e-2, rtol=0)


def test_cagrad_is_theorem_1_divided_by_one_plus_the_radius_squared():
    for seed in range(5):
        G = gram(draw("plain", 4, 8, seed))
        assert_close(cagrad_weights(G, 0.5) * 1.25, invariant_weights(G, 0.5))


def test_cagrad_equals_torchjd_without_the_divisor():
    for seed in range(5):
        G = gram(draw("plain", 4, 8, seed))
        theirs = CAGradWeighting(c=0.5, norm_eps=1e-10)(G)
        assert_close(cagrad_weights(G, 0.5) * 1.25, theirs, atol=1e-5, rtol=1e-4)


def surgery(H, met):
    """Compute PCGrad on vectors, in a loop over projections."""
    rows = []
    for i, order in enumerate(met.tolist()):
        p = H[i].clone()
        for j in order:
            if j != i and p @ H[j] < 0:
                p = p - (p @ H[j]) / (H[j] @ H[j]) * H[j]
        rows.append(p)
    return torch.stack(rows).mean(0)


@kinds
@sizes
def test_pcgrad_on_inner_products_equals_pcgrad_on_vectors(kind, K):
    H = draw(kind, K, 2 * K, seed=K)
    met = orders(K)
    assert_close(pcgrad_weights(gram(H), met) @ H, surgery(H, met), atol=1e-8, rtol=1e-8)


def test_pcgrad_of_torchjd_is_k_times_ours(monkeypatch):
    H = draw("plain", 5, 3, seed=1)
    met = orders(5)
    rows = iter(met)
    monkeypatch.setattr(torch, "randperm", lambda count: next(rows))
    theirs = PCGradWeighting()(gram(H))
    assert_close(5 * pcgrad_weights(gram(H), met), theirs)


def test_order_matters_in_pcgrad_for_three_updates_but_not_for_two():
    three, two = gram(draw("plain", 3, 2, seed=4)), gram(draw("plain", 2, 2, seed=4))
    found = {tuple(pcgrad_weights(three, orders(3, seed)).tolist()) for seed in range(20)}
    assert len(found) > 1
    assert len({tuple(pcgrad_weights(two, orders(2, seed)).tolist()) for seed in range(20)}) == 1


def test_pcgrad_does_not_change_a_zero_update():
    weights = pcgrad_weights(gram(double([[1, 0], [0, 0], [-1, 1]])), orders(3))
    assert weights.isfinite().all()


@kinds
@sizes
def test_upgrad_projects_each_update_on_the_dual_cone(kind, K):
    """Compare with non-negative least squares: min ‖h_i + Σ y_j h_j‖ over y ≥ 0."""
    H = draw(kind, K, 2 * K, seed=K)
    H = H / H.norm(dim=1, keepdim=True)
    projected = [h.numpy() + H.numpy().T @ nnls(H.numpy().T, -h.numpy())[0] for h in H]
    found = upgrad_weights(gram(H)) @ H
    assert_close(found, torch.from_numpy(np.mean(projected, axis=0)), atol=2e-6, rtol=0)
    assert (H @ found).min() >= -1e-7


class LeastSquares(DualConeProjector):
    """Solve min vᵀGv over v ≥ u by non-negative least squares, for TorchJD, which needs an optional package."""

    def __call__(self, U, G):
        root = torch.linalg.cholesky(G).mT.numpy()
        return torch.stack([u + torch.from_numpy(nnls(root, -root @ u.numpy())[0]) for u in U])


def test_upgrad_equals_torchjd():
    for seed in range(5):
        G = gram(draw("plain", 5, 8, seed))
        assert_close(upgrad_weights(G), UPGradWeighting(projector=LeastSquares())(G), atol=1e-9, rtol=1e-9)


def test_upgrad_of_two_conflicting_updates_is_known():
    """(1, 0) and (-1, 1): each update loses its component along the other."""
    H = double([[1, 0], [-1, 1]])
    expected = double([[0.5, 0.5], [0, 1]]).mean(0)
    assert_close(upgrad_weights(gram(H)) @ H, expected)
    assert_close(pcgrad_weights(gram(H), orders(2)) @ H, expected)


def test_without_conflict_pcgrad_and_upgrad_give_the_mean():
    G = gram(draw("plain", 4, 8, seed=0).abs())
    for weights in (pcgrad_weights(G, orders(4)), upgrad_weights(G)):
        assert_close(weights, torch.full_like(weights, 0.25))


@pytest.mark.parametrize("scale", SCALES)
def test_weights_do_not_depend_on_the_scale(scale):
    H = draw("plain", 4, 6, seed=3)
    for one, other in zip(
        every_weighting(gram(H), 0.4, orders(4)), every_weighting(gram(scale * H), 0.4, orders(4)), strict=True
    ):
        assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_upgrad_is_precise_for_very_different_lengths():
    """An update that is 1e8 times shorter than another still has no negative alignment."""
    H = double([[1, 0.2, 0], [-0.8, 0.1, 0.3], [-0.3, 0.1, 0.5]])
    short = torch.tensor([1e8, 1.0, 1e-4], dtype=torch.float64).unsqueeze(1) * H
    moved = upgrad_weights(gram(short)) @ short
    assert (H @ moved / moved.norm()).min() >= -1e-7


@sizes
def test_batch_and_vmap_equal_single_problems(K):
    H = draw("plain", K, K + 1, seed=0, count=4)
    G, met = gram(H), orders(K, count=4)
    radii = torch.tensor([0.1, 0.2, 0.5, 0.9], dtype=torch.float64)
    batched, mapped = every_weighting(G, radii, met), torch.func.vmap(every_weighting)(G, radii, met)
    for i in range(4):
        for one, two, alone in zip(batched, mapped, every_weighting(G[i], radii[i], met[i]), strict=True):
            assert_close(one[i], alone, atol=1e-7, rtol=1e-7)
            assert_close(two[i], alone, atol=1e-7, rtol=1e-7)
