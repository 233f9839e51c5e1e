"""Aligned-MTL: trajectories are made orthogonal, then averaged."""

import pytest
import torch
from rounds import one_round, trajectories
from torch.testing import assert_close
from torchjd.aggregation import AlignedMTLWeighting

from pogm.algorithms.aligned_mtl import AlignedMTL
from pogm.pareto.weightings import aligned_mtl_weights

scales = pytest.mark.parametrize("scale", ["min", "rmse"])


@scales
def test_round_is_the_mean_of_the_scaled_polar_factor(scale):
    """H (HᵀH)^(-1/2) is the product U Vᵀ of the singular vectors of H."""
    method = AlignedMTL(meta_lr=1.0, inner_steps=2, scale=scale)
    before, after, _ = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    left, singular, right = torch.linalg.svd(flat.T, full_matrices=False)
    size = singular.min() if scale == "min" else singular.square().mean().sqrt()
    aligned = size * left @ right
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    assert_close(moved, aligned.mean(1), rtol=1e-8, atol=1e-10)
    assert_close(aligned.T @ aligned, size**2 * torch.eye(len(flat), dtype=torch.float64))
    assert (flat @ moved).min() > 0


@scales
def test_weights_equal_those_of_torchjd(scale):
    for seed in range(5):
        H = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert_close(aligned_mtl_weights(H @ H.T, scale), AlignedMTLWeighting(scale_mode=scale)(H @ H.T))


@scales
def test_dependent_updates_equal_torchjd(scale):
    H = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(aligned_mtl_weights(H @ H.T, scale) @ H, AlignedMTLWeighting(scale_mode=scale)(H @ H.T) @ H)


@scales
def test_orthogonal_updates_of_equal_length_are_not_changed(scale):
    G = 4 * torch.eye(3, dtype=torch.float64)
    assert_close(aligned_mtl_weights(G, scale), torch.full((3,), 1 / 3, dtype=torch.float64))
