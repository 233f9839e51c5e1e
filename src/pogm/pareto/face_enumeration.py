"""Closed-form solutions on faces of the simplex. On all faces together they solve the problem exactly.

A face S is a set of domains with positive weight, given by an indicator vector [K]. `problem.py` explains the symbols.
"""

import torch
from torch import Tensor

from pogm.pareto.problem import inner_products, is_zero_mixture, product

RIDGE = 1e-13  # relative; makes G_S invertible for dependent updates, with an effect below rounding
TIE = 1e-12  # smaller gaps count as equal, and the mixture nearest to uniform is chosen
STATIONARY = 1e-8  # a mixture with h_π = 0 has no gap in closed form; it is chosen if no other gap is below this value
DESCENT = 1e-9  # q below −DESCENT is negative beyond rounding


def subsets(K: int, device: torch.device) -> Tensor:
    """Return indicators [2^K - 1, K] of the non-empty subsets of K domains, created on the device."""
    numbers = torch.arange(1, 2**K, device=device).unsqueeze(-1)
    return ((numbers >> torch.arange(K, device=device)) & 1).to(torch.float64)


CPU_SUBSETS = [subsets(K, torch.device("cpu")) for K in range(9)]


def list_faces(G: Tensor) -> Tensor:
    """Return all faces [2^K - 1, K] for a Gramian [..., K, K], on its device."""
    K = G.shape[-1]
    return CPU_SUBSETS[K] if G.device.type == "cpu" else subsets(K, G.device)


def solve_on_faces(G: Tensor, b: Tensor, radius: Tensor, faces: Tensor, also: Tensor | None = None) -> Tensor:
    r"""Return the mixture π [..., K] of smallest duality gap among the minimisers on ``faces`` [..., F, K].

    On the face S, let :math:`w = G_S^{-1}1 / 1^\top G_S^{-1}1` be the point of its plane nearest to 0, and
    :math:`z = v - (1^\top v)\,w` with :math:`v = G_S^{-1} b_S` the part of h_0 parallel to the plane. Then

    .. math:: \pi_S = w - z \sqrt{\frac{w^\top G w}{r^2 - z^\top G z}}.

    This form of the solution has no cancellation if the plane passes near 0 (then π ≈ w and h_π ≈ 0). Negative entries
    are set to zero. The result is still a mixture, and its gap shows if it is not optimal, so no face needs to be
    accepted or rejected. Other candidates [..., F', K] can be given as ``also``.
    """
    inverse = invert_faces(G, faces)
    b, radius = b.unsqueeze(-2), radius.unsqueeze(-2)  # [..., 1, K], [..., 1, 1]
    nearest = inverse.sum(-1) * faces
    nearest = nearest / nearest.sum(-1, keepdim=True)  # w
    along = multiply(inverse, faces * b)  # v
    along = along - along.sum(-1, keepdim=True) * nearest  # z
    distance, extent = inner_products(torch.cat([nearest, along], dim=-2), G)[1].chunk(2, dim=-2)  # wᵀGw, zᵀGz
    room = (radius**2 - extent).clamp(min=1e-30)
    mixtures = clip_to_simplex(nearest - along * (distance / room).sqrt())
    uniform = torch.full_like(mixtures[..., :1, :], 1 / G.shape[-1])  # exact if all updates are equal
    candidates = [uniform, refine(mixtures, G, b, radius, faces, inverse)]
    if also is not None:  # if the optimum is not unique, the closed form may lie outside the face
        restricted = clip_to_simplex(also[..., :1, :] * faces)
        candidates += [also, refine(restricted, G, b, radius, faces, inverse)]
    return choose_best(torch.cat(candidates, dim=-2), G, b, radius)


def refine(mixtures: Tensor, G: Tensor, b: Tensor, radius: Tensor, faces: Tensor, inverse: Tensor) -> Tensor:
    r"""Take one Newton step on the optimality conditions of each face, :math:`b_i + r (G\pi)_i / \|h_\pi\| = q`.

    The step uses G_S⁻¹ G_S G_S⁻¹ instead of G_S⁻¹. With the ridge, this does not change π along dependent updates,
    where G_S⁻¹ would amplify rounding errors.
    """
    products, square = inner_products(mixtures, G)
    length = square.sqrt()
    level = (mixtures * b).sum(-1, keepdim=True) + radius * length  # q
    residual = length * (level - b) / radius.clamp(min=1e-30) - products
    change = multiply(inverse, faces * residual)
    return clip_to_simplex(mixtures + multiply(inverse, faces * product(change, G)))


def choose_best(mixtures: Tensor, G: Tensor, b: Tensor, radius: Tensor) -> Tensor:
    """Return the mixture [..., K] of smallest duality gap; among optimal ones, the one nearest to uniform."""
    products, square = inner_products(mixtures, G)
    length = square.sqrt()
    level = (mixtures * b).sum(-1, keepdim=True) + radius * length
    gap = level - (b + radius * products / length).amin(-1, keepdim=True)
    rank = gap.clamp(min=TIE) + TIE / 8 * (mixtures**2).sum(-1, keepdim=True)
    rank = rank / (1 + 1e10 * (level < -DESCENT))  # q < 0 proves that h_π = 0 is not optimal
    rank = torch.where(is_zero_mixture(mixtures, square, G), STATIONARY, rank)
    rank = rank.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return select(mixtures, rank.squeeze(-1).argmin(-1))


def project_on_faces(G: Tensor, b: Tensor, faces: Tensor, also: Tensor | None = None) -> Tensor:
    r"""Return y ≥ 0 [..., K] of :math:`\hat h_0 + \sum_i y_i h_i`, the projection of :math:`\hat h_0 = h_0 / s`.

    It is the nearest point d with h_i·d ≥ 0 for all i. On the face S of the active constraints,
    :math:`y_S = -G_S^{-1} b_S`. The result is the candidate that violates the optimality conditions least.
    """
    inverse = invert_faces(G, faces)
    b = b.unsqueeze(-2)
    candidates = -multiply(inverse, faces * b)
    candidates = (candidates - multiply(inverse, faces * (product(candidates, G) + b))).clamp(min=0)  # one refinement
    none = torch.zeros_like(candidates[..., :1, :])
    candidates = torch.cat([none, candidates] if also is None else [none, candidates, also], dim=-2)
    alignment = b + product(candidates, G)
    violation = (-alignment).amax(-1).clamp(min=0) + (candidates * alignment).sum(-1).abs()
    return select(candidates, violation.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(-1))


def invert_faces(G: Tensor, faces: Tensor) -> Tensor:
    """Return G_S⁻¹ of each face S, with the identity outside S. [..., K, K], [..., F, K] -> [..., F, K, K]."""
    ridge = 1 - faces + RIDGE * faces * G.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    matrices = G.unsqueeze(-3) * faces.unsqueeze(-1) * faces.unsqueeze(-2) + torch.diag_embed(ridge)
    return invert_gauss_jordan(matrices) if G.is_cuda and G.shape[-1] <= 8 else invert_cholesky(matrices)


def invert_gauss_jordan(matrices: Tensor) -> Tensor:
    """Return inverses of small positive-definite matrices by Gauss-Jordan elimination: a few kernels per row."""
    K = matrices.shape[-1]
    identity = torch.eye(K, dtype=matrices.dtype, device=matrices.device)
    rows = torch.cat([matrices, identity.expand_as(matrices)], dim=-1)
    for k in range(K):
        pivot = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = rows - (rows[..., :, k : k + 1] - identity[:, k : k + 1]) * pivot
    return rows[..., K:]


def invert_cholesky(matrices: Tensor) -> Tensor:
    """Return inverses of positive-definite matrices; `cholesky_ex` does not wait for the device."""
    factor = torch.linalg.cholesky_ex(matrices)[0]
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    half: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(matrices), upper=False)
    return half.mT @ half


def multiply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return matrix times vector: [..., K, K], [..., K] -> [..., K]."""
    return product(matrices, vectors.unsqueeze(-1)).squeeze(-1)


def clip_to_simplex(candidates: Tensor) -> Tensor:
    """Set negative entries to zero and divide by the sum."""
    positive = candidates.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True)


def select(candidates: Tensor, index: Tensor) -> Tensor:
    """Return the candidate with index ``index`` [...] of ``candidates`` [..., F, K]."""
    return candidates.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)
