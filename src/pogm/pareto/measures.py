"""Lengths, alignments and cosines of a step d = Σ c_i h_i, from the inner products of the updates h_i.

In all functions, G are the inner products h_i·h_j, [..., K, K], and ``weights`` are c, [..., K].
"""

import torch
from torch import Tensor

from pogm.pareto.problem import product


def length(G: Tensor, weights: Tensor) -> Tensor:
    """Return the length of the step, ‖Σ_i c_i h_i‖: [...]."""
    return (weights * alignment(G, weights)).sum(-1).clamp(min=0).sqrt()


def alignment(G: Tensor, weights: Tensor) -> Tensor:
    """Return the alignment of each update with the step, h_i·d = (G c)_i: [..., K]."""
    return product(G.to(torch.float64), weights.to(torch.float64).unsqueeze(-1)).squeeze(-1)


def cosines(G: Tensor, weights: Tensor) -> Tensor:
    """Return cos(h_i, d) of each update: [..., K]; NaN if one of the two is zero."""
    norms = G.diagonal(dim1=-2, dim2=-1).to(torch.float64).sqrt()
    return alignment(G, weights) / (norms * length(G, weights).unsqueeze(-1))


def agreement(G: Tensor) -> Tensor:
    """Return the mean of cos(h_i, h_j) over pairs of nonzero updates: [...]; NaN if there is no pair."""
    norms = G.diagonal(dim1=-2, dim2=-1).to(torch.float64).sqrt()
    cosines = G / (norms.unsqueeze(-1) * norms.unsqueeze(-2))
    counted = cosines.isfinite() & ~torch.eye(G.shape[-1], dtype=torch.bool, device=G.device)
    return torch.where(counted, cosines, 0.0).sum((-2, -1)) / counted.sum((-2, -1))


def inner_product_sum(G: Tensor) -> Tensor:
    r"""Return the gradient inner product (GIP) of the updates: [...].

    .. math:: \sum_{i \ne j} h_i^\top h_j

    The sum is over ordered pairs, so each pair counts twice. Its unit is that of a squared length. With one update the
    GIP is 0.
    """
    return (G - torch.diag_embed(G.diagonal(dim1=-2, dim2=-1))).to(torch.float64).sum((-2, -1))


def alignment_from_cosine(cosines: Tensor, squares: Tensor, step_square: Tensor) -> Tensor:
    """Return U_i = h_i·d, computed from cos(h_i, d), ‖h_i‖² and ‖d‖²: [..., K].

    If one of the two vectors is zero, the cosine is undefined and U_i is 0.

    Args:
        cosines: cos(h_i, d), [..., K]; NaN if undefined.
        squares: ‖h_i‖², [..., K].
        step_square: ‖d‖², [...].
    """
    lengths = squares.sqrt() * step_square.sqrt().unsqueeze(-1)
    return torch.where(lengths == 0, 0.0, cosines * lengths)


def alignment_variance(aligned: Tensor) -> Tensor:
    """Return the variance over domains of U_i = h_i·d, the quantity of Theorem 2: [..., K] -> [...].

    This is the population variance (divided by K), so one domain has a variance of 0.
    """
    return aligned.var(-1, correction=0)


def relative_alignment_variance(aligned: Tensor, squares: Tensor, step_square: Tensor) -> Tensor:
    r"""Return the variance of U_i divided by squared lengths, to compare runs and step lengths: [...].

    .. math:: \frac{\mathrm{Var}_i(U_i)}{\|d\|^2 \, \frac1K \sum_i \|h_i\|^2} \in [0, 1]

    If all h_i have the same length, this is the variance over domains of cos(h_i, d). NaN if the step is
    zero or all updates are zero.
    """
    return alignment_variance(aligned) / (squares.mean(-1) * step_square)
