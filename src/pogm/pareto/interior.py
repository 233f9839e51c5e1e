"""Primal-dual interior-point methods with a fixed number of Newton steps, for more than eight domains.

On a GPU with Triton, the kernels of `interior_kernel.py` do the same in one launch. `problem.py` explains the symbols.
"""

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core.compilation import compiled
from pogm.pareto.face_enumeration import clip_to_simplex, multiply, project_on_faces, solve_on_faces

STEPS = 25
SUPPORTS = (1e-2, 1e-4, 1e-6, 1e-8)  # thresholds for the support, relative to the largest weight
RIDGE = 1e-15  # relative; lets the factorisation succeed for dependent updates
HAS_TRITON = find_spec("triton") is not None
LARGEST_KERNEL = 64  # domains; the matrices of more do not fit into the registers of a GPU
BOUNDARY = 0.9  # largest fraction of the way to the boundary; after a larger step, the next steps would be short


def solve_interior(G: Tensor, b: Tensor, radius: Tensor) -> Tensor:
    r"""Return the mixture π [..., K] for any K: an interior-point method finds the face, then its closed form.

    The method solves the second-order cone program and its dual, with :math:`d = \hat h_0 + \sum_i a_i h_i`:

    .. math:: \min\; b^\top\pi + r t, \quad \|h_\pi\| \le t, \quad \pi \in \Delta; \qquad
              \max\; \mu, \quad s = b + G a - \mu 1 \ge 0, \quad \|h_a\| \le r.

    The complementarity conditions are :math:`\pi_i s_i = 0` and :math:`(t, h_\pi) \circ (r, -h_a) = 0`. The second cone
    has the scaling of Nesterov and Todd, which is stable at h_π = 0, where q has no gradient.
    """
    if has_kernel(G):
        from pogm.pareto import interior_kernel  # imports Triton

        mixture: Tensor = interior_kernel.minimise(G, b, radius)
        return mixture
    radius = radius.clamp(min=1e-12)
    point = start_point(G, b, radius)
    for _ in range(STEPS):
        point = newton_step(point, G, b, radius)
    mixture = clip_to_simplex(point.mixture)
    both = torch.stack([mixture, clip_to_simplex(point.dual)], dim=-2)  # at the optimum a = r π / ‖h_π‖
    return solve_on_faces(G, b, radius, guess_faces(mixture, point.slack), also=both)


def has_kernel(G: Tensor) -> bool:
    """Return whether one Triton kernel solves problems with this Gramian."""
    return G.is_cuda and HAS_TRITON and G.shape[-1] <= LARGEST_KERNEL


class Point(NamedTuple):
    """A strictly feasible pair of a primal point (π, t) and a dual point (a, μ, s)."""

    mixture: Tensor  # [..., K]: π
    bound: Tensor  # [..., 1]: t ≥ ‖h_π‖
    dual: Tensor  # [..., K]: a
    level: Tensor  # [..., 1]: μ
    slack: Tensor  # [..., K]: s


def start_point(G: Tensor, b: Tensor, radius: Tensor) -> Point:
    """Return the uniform mixture, and the centre of the ball with a level μ below every alignment."""
    mixture = torch.full_like(b + radius, 1 / b.shape[-1])
    bound = dot(mixture, multiply(G, mixture)).clamp(min=0).sqrt() + 1
    level = b.amin(-1, keepdim=True) - 1 + 0 * bound
    return Point(mixture, bound, 0 * mixture, level, b - level)


@compiled
def newton_step(point: Point, G: Tensor, b: Tensor, radius: Tensor) -> Point:
    """Take one predictor-corrector Newton step along the central path, or none if it would leave the cones."""
    mixture, bound, dual, _, slack = point
    K = b.shape[-1]
    G_mixture, G_dual = multiply(G, mixture), multiply(G, dual)
    inside = bound**2 - dot(mixture, G_mixture)  # t² - ‖h_π‖²
    room = radius**2 - dot(dual, G_dual)  # r² - ‖h_a‖²
    between = bound * radius - dot(mixture, G_dual)  # (t, h_π)·(r, -h_a)
    # The scaling point (w_0, h_w) of the second cone, and η² (stretch).
    sides = (inside * room).sqrt()
    twice = (2 * (1 + between / sides)).sqrt()
    w_0 = (bound / inside.sqrt() + radius / room.sqrt()) / twice
    w = (mixture / inside.sqrt() + dual / room.sqrt()) / twice
    G_w = multiply(G, w)
    stretch = (inside / room).sqrt()
    head = 2 * w_0**2 - 1

    ratio = slack / mixture
    matrix = (G - (2 / head).unsqueeze(-1) * G_w.unsqueeze(-1) * G_w.unsqueeze(-2)) / stretch.unsqueeze(-1)
    matrix = matrix + torch.diag_embed(ratio + RIDGE * G.diagonal(dim1=-2, dim2=-1) / stretch)
    factor = torch.linalg.cholesky_ex(matrix)[0]
    ones = torch.ones_like(mixture)
    by_level = solve_cholesky(factor, ones)  # dπ/dμ

    def direction(target: Tensor, second_order: Tensor, second_order_0: Tensor, second_order_1: Tensor) -> Point:
        # Right-hand side of the second cone: target (t, h_π)⁻¹ - (r, -h_a) - second-order terms.
        g_0 = target * bound / inside - radius - second_order_0
        g = dual - target / inside * mixture - second_order_1
        rhs = (target - second_order) / mixture - slack + multiply(G, g) + 2 * w_0 / head * g_0 * G_w
        fixed = solve_cholesky(factor, rhs)
        d_level = -total(fixed) / total(by_level)
        d_mixture = fixed + by_level * d_level
        across = dot(G_w, d_mixture)
        d_bound = (stretch * g_0 + 2 * w_0 * across) / head
        d_dual = -(g + (2 * w_0 * d_bound * w - 2 * across * w - d_mixture) / stretch)
        return Point(d_mixture, d_bound, d_dual, d_level, multiply(G, d_dual) - d_level)

    def second_order_terms(step: Point) -> tuple[Tensor, Tensor]:
        """Return the product of primal and dual step in the second cone, in scaled coordinates."""
        l_0, l = scale(radius, -dual)  # the point itself, up to η
        x_0, x = unscale(step.bound, step.mixture)
        z_0, z = scale(0 * radius, -step.dual)
        G_z = multiply(G, z)
        v_0, v = x_0 * z_0 + dot(x, G_z), x_0 * z + z_0 * x  # x∘z
        u_0 = (l_0 * v_0 - dot(v, multiply(G, l))) / room
        u = (v - u_0 * l) / l_0
        out_0, out = unscale(u_0, u)
        return out_0 / stretch, out / stretch

    # The scaling W/η of the second cone and its inverse, on pairs (p_0, h_p); W² maps (r, -h_a) to (t, h_π).
    def scale(p_0: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        along = dot(G_w, p)
        return w_0 * p_0 + along, p + w * (p_0 + along / (1 + w_0))

    def unscale(p_0: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        along = dot(G_w, p)
        return w_0 * p_0 - along, p + w * (along / (1 + w_0) - p_0)

    def feasible_length(step: Point) -> Tensor:
        """Return the largest step length, up to 1, that stays in all cones."""
        G_step, G_step_dual = multiply(G, step.mixture), multiply(G, step.dual)
        primal = max_quadratic_step(
            step.bound**2 - dot(step.mixture, G_step), bound * step.bound - dot(G_mixture, step.mixture), inside
        )
        conic_dual = max_quadratic_step(-dot(step.dual, G_step_dual), -dot(G_dual, step.dual), room)
        linear = torch.minimum(max_step(mixture, step.mixture), max_step(slack, step.slack))
        return torch.minimum(linear, torch.minimum(primal, conic_dual))

    centre = (dot(mixture, slack) + between) / (K + 1)
    none = 0 * mixture
    first = direction(0 * centre, none, 0 * centre, none)
    target = centre * (1 - feasible_length(first)).clamp(min=1e-2) ** 3
    step = direction(target, first.mixture * first.slack, *second_order_terms(first))
    length = BOUNDARY * feasible_length(step)
    moved = Point(*(old + length * new for old, new in zip(point, step, strict=True)))
    moved = moved._replace(slack=b + multiply(G, moved.dual) - moved.level)
    valid = is_positive(moved.mixture) & is_positive(moved.slack)
    valid = valid & is_positive(moved.bound**2 - dot(moved.mixture, multiply(G, moved.mixture)))
    valid = valid & is_positive(radius**2 - dot(moved.dual, multiply(G, moved.dual)))
    return Point(*(torch.where(valid, new, old) for new, old in zip(moved, point, strict=True)))


def project(G: Tensor, b: Tensor, needed: Tensor | None = None) -> Tensor:
    r"""Return y ≥ 0 [..., K] of the projection of h_0 / s on {d : h_i·d ≥ 0}, for any K: min ½ yᵀGy + b·y.

    The result of problems that are not ``needed`` [..., 1] may be anything finite (default: all are needed).
    """
    if has_kernel(G):
        from pogm.pareto import interior_kernel  # imports Triton

        needed = torch.ones_like(b[..., :1]) if needed is None else needed.to(b.dtype)
        projection: Tensor = interior_kernel.project(G, b, needed)
        return projection
    sizes = G.diagonal(dim1=-2, dim2=-1).sqrt()
    sizes = torch.where(sizes > 0, sizes, 1.0)
    G, b = G / sizes.unsqueeze(-1) / sizes.unsqueeze(-2), b / sizes  # h_i·d ≥ 0 does not depend on ‖h_i‖
    y, slack = torch.ones_like(b), torch.ones_like(b)
    for _ in range(STEPS):
        y, slack = projection_step(y, slack, G, b)
    return project_on_faces(G, b, guess_faces(y, slack), also=y.unsqueeze(-2)) / sizes


@compiled
def projection_step(y: Tensor, slack: Tensor, G: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Take one predictor-corrector Newton step towards y ≥ 0, s = G y + b ≥ 0, y_i s_i = 0."""
    factor = torch.linalg.cholesky_ex(G + torch.diag_embed(slack / y + RIDGE))[0]
    residual = multiply(G, y) + b - slack
    centring = (y * slack).mean(-1, keepdim=True)
    dy = solve_cholesky(factor, -residual - slack)
    ds = multiply(G, dy) + residual
    length = torch.minimum(max_step(y, dy), max_step(slack, ds))
    remaining = ((y + length * dy) * (slack + length * ds)).mean(-1, keepdim=True)
    target = centring * (remaining / centring).clamp(1e-4, 1) ** 3 - dy * ds
    dy = solve_cholesky(factor, -residual - slack + target / y)
    ds = multiply(G, dy) + residual
    length = BOUNDARY * torch.minimum(max_step(y, dy), max_step(slack, ds))
    new_y, new_slack = y + length * dy, slack + length * ds
    valid = is_positive(new_y) & is_positive(new_slack)
    return torch.where(valid, new_y, y), torch.where(valid, new_slack, slack)


def guess_faces(weight: Tensor, slack: Tensor) -> Tensor:
    """Return candidates for the face of the optimum [..., F, K]: weights above a threshold, or above their slack."""
    by_size = [weight > least * weight.amax(-1, keepdim=True) for least in SUPPORTS]
    return torch.stack([*by_size, weight > slack], dim=-2).to(weight.dtype)


def max_step(value: Tensor, change: Tensor) -> Tensor:
    """Return the largest step length, up to 1, that keeps ``value`` non-negative. [..., K] -> [..., 1]."""
    limit = torch.where(change < 0, -value / change, torch.inf)
    return limit.amin(-1, keepdim=True).clamp(max=1)


def max_quadratic_step(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the largest t, up to 1, that keeps ``a t² + 2 b t + c`` non-negative, for c > 0."""
    square = b**2 - a * c
    below = square.clamp(min=0).sqrt() - b
    return torch.where((square > 0) & (below > 0), c / below, torch.inf).clamp(max=1)


def is_positive(part: Tensor) -> Tensor:
    """Return whether all entries are positive and finite. [..., K] -> [..., 1]."""
    return ((part > 0) & part.isfinite()).all(-1, keepdim=True)


def solve_cholesky(factor: Tensor, vector: Tensor) -> Tensor:
    """Return the solution x of L Lᵀ x = vector."""
    half = torch.linalg.solve_triangular(factor, vector.unsqueeze(-1), upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole.squeeze(-1)


def dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1, keepdim=True)


def total(vector: Tensor) -> Tensor:
    return vector.sum(-1, keepdim=True)
