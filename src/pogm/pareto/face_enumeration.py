"""Solutions on the faces of the simplex in closed form; on all of them at once the problem is solved exactly."""

import torch
from torch import Tensor

from pogm.pareto.problem import cancels, images, product

RIDGE = 1e-13  # relative; lets dependent updates share a face, at a cost below the rounding error of the rest
TIE = 1e-12  # gaps below this are equal: the evener mixture is taken
STATIONARY = 1e-8  # a mixture with h_π = 0 has no certificate of its own; it wins where no other gap is below this
DESCENT = 1e-9  # q below minus this is negative beyond rounding


def subsets(K: int, device: torch.device) -> Tensor:
    """Indicators [2^K - 1, K] of the non-empty subsets of the domains, made on the device."""
    numbers = torch.arange(1, 2**K, device=device).unsqueeze(-1)
    return ((numbers >> torch.arange(K, device=device)) & 1).to(torch.float64)


ON_CPU = [subsets(K, torch.device("cpu")) for K in range(9)]


def every_face(G: Tensor) -> Tensor:
    """All faces of the simplex of the domains of G, on its device."""
    K = G.shape[-1]
    return ON_CPU[K] if G.device.type == "cpu" else subsets(K, G.device)


def best_on_faces(G: Tensor, b: Tensor, radius: Tensor, faces: Tensor, also: Tensor | None = None) -> Tensor:
    r"""The mixture π [..., K] of smallest duality gap among the minimisers on ``faces`` [..., F, K].

    On the face S, with :math:`w = G_S^{-1}1 / 1^\top G_S^{-1}1` the point of its plane nearest to 0 and
    :math:`z = v - (1^\top v)\,w`, :math:`v = G_S^{-1} b_S`, the part of h_0 along the plane,

    .. math:: \pi_S = w - z \sqrt{\frac{w^\top G w}{r^2 - z^\top G z}}.

    This is the root of the quadratic for μ, without its cancellation when the plane passes near 0 (there
    π = w, and h_π = 0). A negative entry is set to zero: that is a poor mixture, but still a mixture, and
    its gap says so. Hence no face needs to be accepted or rejected.
    """
    inverse = inverses(G, faces)
    b, radius = b.unsqueeze(-2), radius.unsqueeze(-2)  # [..., 1, K], [..., 1, 1]
    nearest = inverse.sum(-1) * faces
    nearest = nearest / nearest.sum(-1, keepdim=True)  # w
    along = apply(inverse, faces * b)  # v
    along = along - along.sum(-1, keepdim=True) * nearest  # z
    distance, extent = images(torch.cat([nearest, along], dim=-2), G)[1].chunk(2, dim=-2)  # wᵀGw, zᵀGz
    room = (radius**2 - extent).clamp(min=1e-30)
    mixtures = on_simplex(nearest - along * (distance / room).sqrt())
    uniform = torch.full_like(mixtures[..., :1, :], 1 / G.shape[-1])  # exact where all updates are equal
    candidates = [uniform, refined(mixtures, G, b, radius, faces, inverse)]
    if also is not None:  # where the optimum is not unique the one in closed form may lie outside the face
        restricted = on_simplex(also[..., :1, :] * faces)
        candidates += [also, refined(restricted, G, b, radius, faces, inverse)]
    return choose(torch.cat(candidates, dim=-2), G, b, radius)


def refined(mixtures: Tensor, G: Tensor, b: Tensor, radius: Tensor, faces: Tensor, inverse: Tensor) -> Tensor:
    r"""One Newton step on the optimality conditions within each face, :math:`b_i + r (G\pi)_i / \nu = q`.

    G_S⁻¹ G_S G_S⁻¹ takes the place of G_S⁻¹: with the ridge, it does not move π along dependent updates, where
    G_S⁻¹ would blow up rounding errors.
    """
    products, square = images(mixtures, G)
    length = square.sqrt()
    level = (mixtures * b).sum(-1, keepdim=True) + radius * length  # q
    residual = length * (level - b) / radius.clamp(min=1e-30) - products
    change = apply(inverse, faces * residual)
    return on_simplex(mixtures + apply(inverse, faces * product(change, G)))


def choose(mixtures: Tensor, G: Tensor, b: Tensor, radius: Tensor) -> Tensor:
    """The mixture of smallest duality gap; among those that are optimal, the one nearest to uniform."""
    products, square = images(mixtures, G)
    length = square.sqrt()
    level = (mixtures * b).sum(-1, keepdim=True) + radius * length
    gap = level - (b + radius * products / length).amin(-1, keepdim=True)
    rank = gap.clamp(min=TIE) + TIE / 8 * (mixtures**2).sum(-1, keepdim=True)
    rank = rank / (1 + 1e10 * (level < -DESCENT))  # q < 0 proves that h_π = 0 is not optimal
    rank = torch.where(cancels(mixtures, square, G), STATIONARY, rank)
    rank = rank.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return take(mixtures, rank.squeeze(-1).argmin(-1))


def projection_on_faces(G: Tensor, b: Tensor, faces: Tensor, also: Tensor | None = None) -> Tensor:
    r"""The y ≥ 0 of :math:`\hat h_0 + \sum_i y_i h_i`, the point nearest to h_0 with no h_i·d negative.

    On the face S of the active constraints :math:`y_S = -G_S^{-1} b_S`; the best is the one of least violation.
    """
    inverse = inverses(G, faces)
    b = b.unsqueeze(-2)
    candidates = -apply(inverse, faces * b)
    candidates = (candidates - apply(inverse, faces * (product(candidates, G) + b))).clamp(min=0)  # refined once
    none = torch.zeros_like(candidates[..., :1, :])
    candidates = torch.cat([none, candidates] if also is None else [none, candidates, also], dim=-2)
    alignment = b + product(candidates, G)
    violation = (-alignment).amax(-1).clamp(min=0) + (candidates * alignment).sum(-1).abs()
    return take(candidates, violation.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(-1))


def inverses(G: Tensor, faces: Tensor) -> Tensor:
    """G_S⁻¹ for each face S, bordered by the identity. [..., K, K], [..., F, K] -> [..., F, K, K]."""
    ridge = 1 - faces + RIDGE * faces * G.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    matrices = G.unsqueeze(-3) * faces.unsqueeze(-1) * faces.unsqueeze(-2) + torch.diag_embed(ridge)
    return eliminate(matrices) if G.is_cuda and G.shape[-1] <= 8 else invert(matrices)


def eliminate(matrices: Tensor) -> Tensor:
    """Inverses of small positive matrices by Gauss-Jordan: K steps for all of them, each a few plain kernels."""
    K = matrices.shape[-1]
    identity = torch.eye(K, dtype=matrices.dtype, device=matrices.device)
    rows = torch.cat([matrices, identity.expand_as(matrices)], dim=-1)
    for k in range(K):
        pivot = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = rows - (rows[..., :, k : k + 1] - identity[:, k : k + 1]) * pivot
    return rows[..., K:]


def invert(matrices: Tensor) -> Tensor:
    """Inverses of positive matrices by Cholesky; the `_ex` form does not wait for the device."""
    factor = torch.linalg.cholesky_ex(matrices)[0]
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    half: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(matrices), upper=False)
    return half.mT @ half


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrix times vector, for batches of both."""
    return product(matrices, vectors.unsqueeze(-1)).squeeze(-1)


def on_simplex(candidates: Tensor) -> Tensor:
    """Without what is negative, and of sum 1."""
    positive = candidates.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True)


def take(candidates: Tensor, index: Tensor) -> Tensor:
    """Candidate number ``index`` [...] of ``candidates`` [..., F, K]."""
    return candidates.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)
