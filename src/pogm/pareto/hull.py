"""Position of an update relative to the convex hull of others, and p* of many problems, from inner products alone."""

import torch
from torch import Tensor

from pogm.pareto.solution import solve
from pogm.pareto.weightings import mgda_weights

INSIDE = 1e-6  # a distance shorter than this share of the updates is rounding error
AT_ONCE = 256  # problems that are solved at once


def hull_positions(G: Tensor, K: int) -> Tensor:
    """Distance and cosine of the updates after the first K, relative to the convex hull of the first K.

    Args:
        G: Inner products of K + T updates, [R, K + T, K + T].
        K: Number of updates that span the hull.

    Returns:
        [R, T, 2]: the distance from the hull divided by the length of the update (0 inside), and the cosine with the
        nearest point of the hull.
    """
    parts = [
        torch.stack([_position(part, K, place) for place in range(K, part.shape[1])], 1)
        for part in torch.split(G, AT_ONCE)
    ]
    return torch.cat(parts)


def nearest_mixture(sources: Tensor, mixed: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Project h_T onto the convex hull of the h_i: p = Σ_i π_i h_i is the nearest point.

    Args:
        sources: h_i·h_j, [R, K, K].
        mixed: h_i·h_T, [R, K].
        own: ‖h_T‖², [R].

    Returns:
        The Gramian (h_i − h_T)·(h_j − h_T), [R, K, K], and the weights π, [R, K].
    """
    apart = sources - mixed[:, :, None] - mixed[:, None, :] + own[:, None, None]
    ridge = torch.diag_embed(_rounding(sources, own)[:, None].expand_as(mixed))  # the differences may be indefinite
    return apart, mgda_weights(apart + ridge)


def worst_alignments(G: Tensor, radius: float) -> Tensor:
    """p* of every problem [R, K, K] around the mean of its updates, divided by the mean of ‖h_i‖²: [R]."""
    solved = torch.cat([solve(part, radius).worst for part in torch.split(G, AT_ONCE)])
    return solved / G.diagonal(dim1=1, dim2=2).mean(1)


def _position(G: Tensor, K: int, place: int) -> Tensor:
    """Distance and cosine of one update h_T, [R, 2]: the shortest mixture of all h_i − h_T leads to the hull."""
    sources, mixed, own = G[:, :K, :K], G[:, :K, place], G[:, place, place]  # h_i·h_j, h_i·h_T, ‖h_T‖²
    apart, mixture = nearest_mixture(sources, mixed, own)
    square = torch.einsum("ri,rij,rj->r", mixture, apart, mixture).clamp(min=0)  # ‖h_π − h_T‖²
    least = torch.maximum(INSIDE**2 * apart.diagonal(dim1=1, dim2=2).mean(1), _rounding(sources, own))
    square = torch.where(square <= least, 0.0, square)
    nearest = torch.einsum("ri,rij,rj->r", mixture, sources, mixture).clamp(min=0)  # ‖h_π‖²
    cosine = (mixture * mixed).sum(1) / (nearest * own).sqrt()
    return torch.stack([(square / own).sqrt(), cosine], 1)


def _rounding(sources: Tensor, own: Tensor) -> Tensor:
    """Rounding error of squared distances that are computed from inner products: [R]."""
    largest = torch.maximum(sources.diagonal(dim1=1, dim2=2).amax(1), own)
    return 16 * torch.finfo(torch.float64).eps * largest
