"""Position of an update relative to the convex hull of others, and p* of many problems, from inner products."""

import torch
from torch import Tensor

from pogm.pareto.solution import solve
from pogm.pareto.weightings import mgda_weights

INSIDE = 1e-6  # a distance below this fraction of the lengths of the updates is rounding error
AT_ONCE = 256  # number of problems in a batch


def hull_positions(G: Tensor, K: int) -> Tensor:
    """Return distance and cosine of the updates after the first K, relative to the convex hull of the first K.

    Args:
        G: Inner products of K + T updates, [R, K + T, K + T].
        K: Number of updates that span the hull.

    Returns:
        [R, T, 2]: the distance from the hull divided by the length of the update (0 inside), and the cosine with the
        nearest point of the hull.
    """
    parts = [
        torch.stack([_position(part, K, index) for index in range(K, part.shape[1])], 1)
        for part in torch.split(G, AT_ONCE)
    ]
    return torch.cat(parts)


def nearest_mixture(sources: Tensor, mixed: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Project h_T onto the convex hull of the h_i: p = Σ_i π_i h_i is the nearest point.

    Args:
        sources: h_i·h_j, [R, K, K].
        mixed: h_i·h_T, [R, K].
        square: ‖h_T‖², [R].

    Returns:
        The Gramian (h_i − h_T)·(h_j − h_T), [R, K, K], and the weights π, [R, K].
    """
    differences = sources - mixed[:, :, None] - mixed[:, None, :] + square[:, None, None]
    ridge = torch.diag_embed(_rounding(sources, square)[:, None].expand_as(mixed))  # rounding may make it indefinite
    return differences, mgda_weights(differences + ridge)


def worst_alignments(G: Tensor, radius: float) -> Tensor:
    """Return p* of every problem [R, K, K] around the mean of its updates, divided by the mean of ‖h_i‖²: [R]."""
    solved = torch.cat([solve(part, radius).worst for part in torch.split(G, AT_ONCE)])
    return solved / G.diagonal(dim1=1, dim2=2).mean(1)


def _position(G: Tensor, K: int, index: int) -> Tensor:
    """Return distance and cosine of one update h_T, [R, 2], from the shortest mixture of all h_i − h_T."""
    sources, mixed, square = G[:, :K, :K], G[:, :K, index], G[:, index, index]  # h_i·h_j, h_i·h_T, ‖h_T‖²
    differences, mixture = nearest_mixture(sources, mixed, square)
    distance = torch.einsum("ri,rij,rj->r", mixture, differences, mixture).clamp(min=0)  # ‖h_π − h_T‖²
    least = torch.maximum(INSIDE**2 * differences.diagonal(dim1=1, dim2=2).mean(1), _rounding(sources, square))
    distance = torch.where(distance <= least, 0.0, distance)
    nearest = torch.einsum("ri,rij,rj->r", mixture, sources, mixture).clamp(min=0)  # ‖h_π‖²
    cosine = (mixture * mixed).sum(1) / (nearest * square).sqrt()
    return torch.stack([(distance / square).sqrt(), cosine], 1)


def _rounding(sources: Tensor, square: Tensor) -> Tensor:
    """Return the rounding error of squared distances that are computed from inner products: [R]."""
    largest = torch.maximum(sources.diagonal(dim1=1, dim2=2).amax(1), square)
    return 16 * torch.finfo(torch.float64).eps * largest
