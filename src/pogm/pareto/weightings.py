"""Weightings of other methods, from the same inner products: MGDA, CAGrad, PCGrad, UPGrad and others."""

import torch
from torch import Tensor

from pogm.pareto import face_enumeration, interior
from pogm.pareto.eigen import RANK, eigh
from pogm.pareto.problem import normalise
from pogm.pareto.solution import EXACT, solve

NEWTON_STEPS = 40  # of Nash-MTL


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


def config_weights(G: Tensor) -> Tensor:
    r"""Return the weights of ConFIG (Liu et al., 2024): [..., K].

    .. math:: d = \tfrac1K \Big(\sum_j h_j^\top \hat v\Big) \hat v, \qquad v = \sum_i x_i \hat h_i, \qquad
              x = C^+ 1, \quad C_{ij} = \hat h_i^\top \hat h_j

    A hat scales a vector to length 1. The paper multiplies with the sum of the projections; the mean does not grow
    with K. If no direction has a positive cosine with the updates (v = 0), all weights are 0.
    """
    lengths, C = _cosines(G)
    x = _equal_cosines(C)
    projections = lengths * (C @ x.unsqueeze(-1)).squeeze(-1)  # h_j·v
    square = (x.unsqueeze(-2) @ C @ x.unsqueeze(-1)).squeeze(-1)  # ‖v‖²: at least 1 if all cosines are equal
    factor = torch.where(square > RANK, projections.mean(-1, keepdim=True) / square.clamp(min=RANK), 0.0)
    return factor * x / torch.where(lengths > 0, lengths, 1.0)


def imtlg_weights(G: Tensor) -> Tensor:
    r"""Return the weights of IMTL-G (Liu et al., 2021): [..., K], with sum 1.

    .. math:: \hat h_i^\top d = \hat h_j^\top d \;\forall i, j, \quad \sum_i c_i = 1: \qquad
              c_i \propto x_i / \|h_i\|, \quad x = C^+ 1

    C has the cosines of the updates, and a hat scales a vector to length 1. If the sum of all x_i / ‖h_i‖ is zero up to
    rounding error, there is no such d, and all weights are 0.
    """
    lengths, C = _cosines(G)
    weights = _equal_cosines(C) / torch.where(lengths > 0, lengths, 1.0)
    total, size = weights.sum(-1, keepdim=True), weights.abs().sum(-1, keepdim=True)
    exists = total.abs() > RANK * size
    return torch.where(exists, weights / torch.where(exists, total, 1.0), 0.0)


def aligned_mtl_weights(G: Tensor, scale: str = "min") -> Tensor:
    r"""Return the weights of Aligned-MTL (Senushkin et al., 2023): [..., K].

    .. math:: c = \sqrt{\sigma} \, V \Lambda^{-1/2} V^\top \tfrac1K 1, \qquad G = V \Lambda V^\top

    Eigenvalues that count as zero (see `RANK`) are left out. If all are zero, the weights are 1/K.

    Args:
        G: [..., K, K], as from `pogm.pareto.gramian`.
        scale: σ: "min" for the smallest eigenvalue, "rmse" for the mean eigenvalue.
    """
    values, vectors = eigh(G.detach().to(torch.float64))
    kept = values > RANK * values.amax(-1, keepdim=True)
    count = kept.sum(-1, keepdim=True)
    if scale == "min":
        sigma = torch.where(kept, values, torch.inf).amin(-1, keepdim=True)
    else:
        sigma = torch.where(kept, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    factors = torch.where(kept, (sigma / torch.where(kept, values, 1.0)).sqrt(), 0.0)
    weights = (vectors @ (factors * vectors.mean(-2)).unsqueeze(-1)).squeeze(-1)
    return torch.where(count > 0, weights, 1 / G.shape[-1])


def nash_mtl_weights(G: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the weights of Nash-MTL (Navon et al., 2022), [..., K] with sum 1, and the residual of their equation.

    .. math:: G a = 1 / a, \quad a > 0: \qquad \min_{a > 0} \tfrac12 a^\top G a - \sum_i \log a_i,
              \qquad c = a / \sum_i a_i

    The minimum is found by Newton steps that are damped for self-concordant functions. The variables are
    scaled to unit updates. The residual is :math:`\max_i |a_i (G a)_i - 1|`. It is large if the updates have a convex
    combination that is zero: then the equation has no solution, and d is close to zero. Zero updates share all weight.
    """
    lengths, C = _cosines(G)
    b = _bargain(C)  # a_i ‖h_i‖
    residual = (b * (C @ b.unsqueeze(-1)).squeeze(-1) - 1).abs().amax(-1)
    weights = b / torch.where(lengths > 0, lengths, 1.0)
    weights = weights / weights.sum(-1, keepdim=True)
    absent = (lengths == 0).to(weights.dtype)
    count = absent.sum(-1, keepdim=True)
    return torch.where(count > 0, absent / count.clamp(min=1), weights), residual


def principal_weights(G: Tensor, directions: int) -> Tensor:
    r"""Return the weights of PGrad (Wang et al., 2023) for the displacements of a walk: [..., n].

    .. math:: d = \|u_n\| \sum_{z=1}^k \frac{\lambda_z}{\|(\lambda_1, \dots, \lambda_k)\|} s_z v_z, \qquad
              s_z = \operatorname{sign}(v_z^\top u_n)

    :math:`\lambda_z` and :math:`v_z` are the k largest principal components of the points 0, u_1, …, u_n. Their inner
    products determine them: for the eigenvector e of the centred Gramian, v is Σ_j e_j (u_j − mean) / √λ. Components
    that count as zero (see `RANK`) are left out. The weights are of u_1, …, u_n; 0 needs none.

    Args:
        G: Inner products u_i·u_j, [..., n, n]. If one is not finite, the weights are 0.
        directions: k.
    """
    G = G.detach().to(torch.float64)
    G = torch.where(G.isfinite().all(-1, keepdim=True).all(-2, keepdim=True), G, 0.0)
    points = torch.nn.functional.pad(G, (1, 0, 1, 0))  # with the first point, 0
    count = points.shape[-1]
    centre = torch.eye(count, dtype=G.dtype, device=G.device) - 1 / count
    values, vectors = eigh(centre @ points @ centre)
    values, order = values.sort(-1, descending=True)
    vectors = vectors.gather(-1, order.unsqueeze(-2).expand_as(vectors))[..., :directions]
    values = values[..., :directions]
    kept = (values > RANK * values[..., :1]) & (values > 0)
    share = torch.where(kept, values, 0.0)
    share = share / share.square().sum(-1, keepdim=True).sqrt().clamp(min=torch.finfo(G.dtype).tiny)
    unit = centre @ vectors / torch.where(kept, values, 1.0).sqrt().unsqueeze(-2)  # [..., n + 1, k]: of v_z
    along = (points[..., -1, :].unsqueeze(-2) @ unit).squeeze(-2)  # v_z·u_n
    signs = torch.where(along < 0, -1.0, 1.0)
    total = (unit @ (share * signs).unsqueeze(-1)).squeeze(-1)
    return points[..., -1, -1:].clamp(min=0).sqrt() * total[..., 1:]


def _cosines(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths [..., K] and the cosines [..., K, K] of the updates; zero updates have cosines 0."""
    G = G.detach().to(torch.float64)
    lengths = G.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = torch.where(lengths > 0, 1 / lengths, 0.0)
    return lengths, G * scale.unsqueeze(-1) * scale.unsqueeze(-2)


def _bargain(C: Tensor) -> Tensor:
    """Return b > 0 [..., K] with C b = 1 / b: a fixed number of Newton steps, or one Triton kernel on a GPU."""
    if interior.has_kernel(C):
        from pogm.pareto import weighting_kernels  # imports Triton

        found: Tensor = weighting_kernels.nash_mtl(C, NEWTON_STEPS)
        return found
    b = torch.ones_like(C[..., 0])
    for _ in range(NEWTON_STEPS):
        gradient = (C @ b.unsqueeze(-1)).squeeze(-1) - 1 / b
        factor = torch.linalg.cholesky_ex(C + torch.diag_embed(1 / b.square()))[0]
        step = interior.solve_cholesky(factor, gradient)
        decrement = (gradient * step).sum(-1, keepdim=True).clamp(min=0).sqrt()
        b = b - step / torch.where(decrement < 0.25, 1.0, 1 + decrement)
    return b


def _equal_cosines(C: Tensor) -> Tensor:
    """Return x = C⁺ 1, [..., K]: the sum of x_i unit updates has the same inner product with all of them."""
    values, vectors = eigh(C)
    kept = values > RANK * values.amax(-1, keepdim=True)
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1.0), 0.0)
    return (vectors @ (inverse * vectors.sum(-2)).unsqueeze(-1)).squeeze(-1)
