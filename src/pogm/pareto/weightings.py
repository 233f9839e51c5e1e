"""Weightings of other methods, from the same inner products: MGDA, CAGrad, PCGrad and UPGrad."""

import torch
from torch import Tensor

from pogm.pareto import face_enumeration, interior
from pogm.pareto.problem import normalise
from pogm.pareto.solution import EXACT, solve


def mgda_weights(G: Tensor) -> Tensor:
    r"""Return the shortest convex combination of the updates (Désidéri, 2012): [..., K] on the simplex.

    .. math:: c = \arg\min_{\pi\in\Delta} \|h_\pi\|

    This is the problem of Theorem 1 with a centre orthogonal to every update, so the same solver is used. If there are
    zero updates, they share all the weight.
    """
    sizes = G.detach().to(torch.float64).diagonal(dim1=-2, dim2=-1)
    mixture = solve(G, 1.0, centre=(torch.zeros_like(sizes), sizes.mean(-1))).mixture
    absent = (sizes == 0).to(mixture.dtype)
    count = absent.sum(-1, keepdim=True)
    return torch.where(count > 0, absent / count.clamp(min=1), mixture)


def cagrad_weights(G: Tensor, radius: float | Tensor) -> Tensor:
    r"""Return the weights of CAGrad (Liu et al., 2021): [..., K].

    .. math:: \max_d \min_i h_i^\top d \quad\text{with}\quad \|d - h_0\| \le r \|h_0\|,
              \qquad \text{divided by } 1 + r^2

    The weights are those of Theorem 1, divided by 1 + r² as in the authors' code.
    """
    return solve(G, radius).weights / (1 + normalise(G, radius).radius ** 2)


def pcgrad_weights(G: Tensor, orders: Tensor) -> Tensor:
    r"""Return the weights of PCGrad (Yu et al., 2020): [..., K, K] -> [..., K].

    .. math:: p_i \leftarrow p_i - \frac{\min(p_i^\top h_j, 0)}{\|h_j\|^2} h_j \text{ for each } j \ne i,
              \qquad d = \tfrac1K \sum_i p_i

    The paper sums the p_i; the mean does not grow with K.

    Args:
        G: [..., K, K], as from `pogm.pareto.gramian`.
        orders: [..., K, K]; row i is a permutation of the updates: the order of the projections of update i.
    """
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    numbers = torch.arange(K, device=G.device)
    rows = torch.eye(K, dtype=G.dtype, device=G.device).expand_as(G)  # p_i = Σ_j rows_ij h_j
    for met in orders.unbind(-1):
        chosen = (met.unsqueeze(-1) == numbers).to(G.dtype)  # [..., K, K]: row i says which j
        against = (rows * (chosen @ G)).sum(-1).clamp(max=0)  # min(p_i·h_j, 0)
        square = (chosen @ G.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).squeeze(-1)
        share = torch.where((met != numbers) & (square > 0), against / square, 0.0)
        rows = rows - share.unsqueeze(-1) * chosen
    return rows.mean(-2)


def upgrad_weights(G: Tensor) -> Tensor:
    r"""Return the weights of UPGrad (Quinton and Rey, 2024): [..., K].

    .. math:: d = \tfrac1K \sum_i \arg\min_{p \,:\, h_j^\top p \ge 0 \;\forall j} \|p - h_i\|
              = \tfrac1K \sum_i \Big(h_i + \sum_j y_{ij} h_j\Big), \qquad y_{ij} \ge 0

    Exact for K ≤ 8; for larger K an interior-point method with a fixed number of steps. The problem is scaled to unit
    updates, which changes neither the cone nor the direction of a projection.
    """
    G = G.detach().to(torch.float64)
    sizes = G.diagonal(dim1=-2, dim2=-1).sqrt()
    sizes = torch.where(sizes == 0, 1.0, sizes)
    cosines = G / (sizes.unsqueeze(-1) * sizes.unsqueeze(-2))
    each = cosines.unsqueeze(-3)  # [..., 1, K, K]: one problem, with every row of it as a centre
    if G.shape[-1] > EXACT:
        y = interior.project(each, cosines)
    else:
        y = face_enumeration.project_on_faces(each, cosines, face_enumeration.list_faces(G))
    y = y * sizes.unsqueeze(-1) / sizes.unsqueeze(-2)
    return (1 + y.sum(-2)) / G.shape[-1]
