"""What a step along weighted updates is worth to each of them, from their inner products alone."""

import torch
from torch import Tensor

from pogm.pareto.problem import product


def length(G: Tensor, weights: Tensor) -> Tensor:
    """The length of a step, |Σ_i c_i h_i|: [...]."""
    return (weights * alignment(G, weights)).sum(-1).clamp(min=0).sqrt()


def alignment(G: Tensor, weights: Tensor) -> Tensor:
    """How far each update agrees with the step d = Σ_j c_j h_j: h_i·d = (G c)_i, [..., K]."""
    return product(G.to(torch.float64), weights.to(torch.float64).unsqueeze(-1)).squeeze(-1)


def angles(G: Tensor, weights: Tensor) -> Tensor:
    """cos(h_i, d) for each update: [..., K]; NaN where one of the two is zero."""
    norms = G.diagonal(dim1=-2, dim2=-1).to(torch.float64).sqrt()
    return alignment(G, weights) / (norms * length(G, weights).unsqueeze(-1))


def agreement(G: Tensor) -> Tensor:
    """The mean of cos(h_i, h_j) over pairs of updates that are not zero: [...]; NaN where there is none."""
    norms = G.diagonal(dim1=-2, dim2=-1).to(torch.float64).sqrt()
    cosines = G / (norms.unsqueeze(-1) * norms.unsqueeze(-2))
    counted = cosines.isfinite() & ~torch.eye(G.shape[-1], dtype=torch.bool, device=G.device)
    return torch.where(counted, cosines, 0.0).sum((-2, -1)) / counted.sum((-2, -1))
