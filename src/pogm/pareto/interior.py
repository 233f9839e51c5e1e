"""Primal-dual interior-point methods for more domains than faces can be listed: a fixed number of Newton steps."""

from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core.compilation import compiled
from pogm.pareto.face_enumeration import apply, best_on_faces, on_simplex, projection_on_faces

STEPS = 25
SUPPORTS = (1e-2, 1e-4, 1e-6, 1e-8)  # shares of the largest weight above which a domain may carry weight
RIDGE = 1e-15  # relative, so that dependent updates do not stop the factorisation
CLOSE = 0.9  # how much of the way to the boundary a step may go; nearer, and the next steps are short


def interior(G: Tensor, b: Tensor, radius: Tensor) -> Tensor:
    r"""The mixture π [..., K] for any K: its support by an interior-point method, then exactly on that face.

    The method solves the second-order cone program and its dual, with :math:`d = \hat h_0 + \sum_i a_i h_i`:

    .. math:: \min\; b^\top\pi + r t, \quad \|h_\pi\| \le t, \quad \pi \in \Delta; \qquad
              \max\; \mu, \quad s = b + G a - \mu 1 \ge 0, \quad \|h_a\| \le r.

    The cones couple through :math:`\pi_i s_i = 0` and :math:`(t, h_\pi) \circ (r, -h_a) = 0`; Nesterov and Todd's
    scaling of the second keeps it well behaved where h_π = 0, at which q has no gradient.
    """
    radius = radius.clamp(min=1e-12)
    point = start(G, b, radius)
    for _ in range(STEPS):
        point = advance(point, G, b, radius)
    mixture = on_simplex(point.mixture)
    both = torch.stack([mixture, on_simplex(point.pull)], dim=-2)  # at the optimum a = r π / ν
    return best_on_faces(G, b, radius, supports(mixture, point.slack), also=both)


class Point(NamedTuple):
    """A strictly feasible pair of solutions, primal (π, t) and dual (a, μ, s)."""

    mixture: Tensor  # [..., K]: π
    bound: Tensor  # [..., 1]: t, on ‖h_π‖
    pull: Tensor  # [..., K]: a
    level: Tensor  # [..., 1]: μ
    slack: Tensor  # [..., K]: s


def start(G: Tensor, b: Tensor, radius: Tensor) -> Point:
    """The uniform mixture, and the centre of the ball with a level below every alignment."""
    mixture = torch.full_like(b + radius, 1 / b.shape[-1])
    bound = dot(mixture, apply(G, mixture)).clamp(min=0).sqrt() + 1
    level = b.amin(-1, keepdim=True) - 1 + 0 * bound
    return Point(mixture, bound, 0 * mixture, level, b - level)


@compiled
def advance(point: Point, G: Tensor, b: Tensor, radius: Tensor) -> Point:
    """One Newton step on the central path, its target set by a first try. A step out of the cones is not taken."""
    mixture, bound, pull, _, slack = point
    K = b.shape[-1]
    G_mixture, G_pull = apply(G, mixture), apply(G, pull)
    inside = bound**2 - dot(mixture, G_mixture)  # t² - ‖h_π‖²
    room = radius**2 - dot(pull, G_pull)  # r² - ‖h_a‖²
    between = bound * radius - dot(mixture, G_pull)  # (t, h_π)·(r, -h_a)
    # the scaling point (w_0, h_w) of the second cone, and η²
    sides = (inside * room).sqrt()
    twice = (2 * (1 + between / sides)).sqrt()
    w_0 = (bound / inside.sqrt() + radius / room.sqrt()) / twice
    w = (mixture / inside.sqrt() + pull / room.sqrt()) / twice
    G_w = apply(G, w)
    stretch = (inside / room).sqrt()
    head = 2 * w_0**2 - 1

    ratio = slack / mixture
    matrix = (G - (2 / head).unsqueeze(-1) * G_w.unsqueeze(-1) * G_w.unsqueeze(-2)) / stretch.unsqueeze(-1)
    matrix = matrix + torch.diag_embed(ratio + RIDGE * G.diagonal(dim1=-2, dim2=-1) / stretch)
    factor = torch.linalg.cholesky_ex(matrix)[0]
    ones = torch.ones_like(mixture)
    by_level = backsolve(factor, ones)  # dπ per unit of dμ

    def direction(target: Tensor, bent: Tensor, bent_0: Tensor, bent_1: Tensor) -> Point:
        # where the cone (r, -h_a) must go before (t, h_π) moves: target (t, h_π)⁻¹ - (r, -h_a) - bent
        g_0 = target * bound / inside - radius - bent_0
        g = pull - target / inside * mixture - bent_1
        rhs = (target - bent) / mixture - slack + apply(G, g) + 2 * w_0 / head * g_0 * G_w
        fixed = backsolve(factor, rhs)
        d_level = -total(fixed) / total(by_level)
        d_mixture = fixed + by_level * d_level
        across = dot(G_w, d_mixture)
        d_bound = (stretch * g_0 + 2 * w_0 * across) / head
        d_pull = -(g + (2 * w_0 * d_bound * w - 2 * across * w - d_mixture) / stretch)
        return Point(d_mixture, d_bound, d_pull, d_level, apply(G, d_pull) - d_level)

    def bend(step: Point) -> tuple[Tensor, Tensor]:
        """What the product of the two changes adds to the second cone, seen from its scaling point."""
        l_0, l = scale(radius, -pull)  # the point itself, up to η
        x_0, x = unscale(step.bound, step.mixture)
        z_0, z = scale(0 * radius, -step.pull)
        G_z = apply(G, z)
        v_0, v = x_0 * z_0 + dot(x, G_z), x_0 * z + z_0 * x  # x∘z
        u_0 = (l_0 * v_0 - dot(v, apply(G, l))) / room
        u = (v - u_0 * l) / l_0
        out_0, out = unscale(u_0, u)
        return out_0 / stretch, out / stretch

    # the scaling W/η of the second cone and its inverse, on pairs (p_0, h_p); W² takes (r, -h_a) to (t, h_π)
    def scale(p_0: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        along = dot(G_w, p)
        return w_0 * p_0 + along, p + w * (p_0 + along / (1 + w_0))

    def unscale(p_0: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        along = dot(G_w, p)
        return w_0 * p_0 - along, p + w * (along / (1 + w_0) - p_0)

    def reach(step: Point) -> Tensor:
        G_step, G_turn = apply(G, step.mixture), apply(G, step.pull)
        outwards = root(
            step.bound**2 - dot(step.mixture, G_step), bound * step.bound - dot(G_mixture, step.mixture), inside
        )
        turning = root(-dot(step.pull, G_turn), -dot(G_pull, step.pull), room)
        linear = torch.minimum(furthest(mixture, step.mixture), furthest(slack, step.slack))
        return torch.minimum(linear, torch.minimum(outwards, turning))

    centre = (dot(mixture, slack) + between) / (K + 1)
    none = 0 * mixture
    first = direction(0 * centre, none, 0 * centre, none)
    target = centre * (1 - reach(first)).clamp(min=1e-2) ** 3
    step = direction(target, first.mixture * first.slack, *bend(first))
    length = CLOSE * reach(step)
    moved = Point(*(old + length * new for old, new in zip(point, step, strict=True)))
    moved = moved._replace(slack=b + apply(G, moved.pull) - moved.level)
    sound = inner(moved.mixture) & inner(moved.slack)
    sound = sound & inner(moved.bound**2 - dot(moved.mixture, apply(G, moved.mixture)))
    sound = sound & inner(radius**2 - dot(moved.pull, apply(G, moved.pull)))
    return Point(*(torch.where(sound, new, old) for new, old in zip(moved, point, strict=True)))


def projection(G: Tensor, b: Tensor) -> Tensor:
    r"""The y ≥ 0 of the projection of h_0 on {d : h_i·d ≥ 0}: min ½ yᵀGy + b·y, for any K."""
    sizes = G.diagonal(dim1=-2, dim2=-1).sqrt()
    sizes = torch.where(sizes > 0, sizes, 1.0)
    G, b = G / sizes.unsqueeze(-1) / sizes.unsqueeze(-2), b / sizes  # a constraint does not depend on the length of h_i
    y, slack = torch.ones_like(b), torch.ones_like(b)
    for _ in range(STEPS):
        y, slack = approach(y, slack, G, b)
    return projection_on_faces(G, b, supports(y, slack), also=y.unsqueeze(-2)) / sizes


@compiled
def approach(y: Tensor, slack: Tensor, G: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """One Newton step towards y ≥ 0, s = G y + b ≥ 0, y_i s_i = 0, its target set by a first try."""
    factor = torch.linalg.cholesky_ex(G + torch.diag_embed(slack / y + RIDGE))[0]
    miss = apply(G, y) + b - slack
    centring = (y * slack).mean(-1, keepdim=True)
    dy = backsolve(factor, -miss - slack)
    ds = apply(G, dy) + miss
    reach = torch.minimum(furthest(y, dy), furthest(slack, ds))
    left = ((y + reach * dy) * (slack + reach * ds)).mean(-1, keepdim=True)
    target = centring * (left / centring).clamp(1e-4, 1) ** 3 - dy * ds
    dy = backsolve(factor, -miss - slack + target / y)
    ds = apply(G, dy) + miss
    reach = CLOSE * torch.minimum(furthest(y, dy), furthest(slack, ds))
    moved, loosened = y + reach * dy, slack + reach * ds
    sound = inner(moved) & inner(loosened)
    return torch.where(sound, moved, y), torch.where(sound, loosened, slack)


def supports(weight: Tensor, slack: Tensor) -> Tensor:
    """Guesses of the support, as faces [..., F, K]: by size of the weight, and by weight against slack."""
    by_size = [weight > least * weight.amax(-1, keepdim=True) for least in SUPPORTS]
    return torch.stack([*by_size, weight > slack], dim=-2).to(weight.dtype)


def furthest(value: Tensor, change: Tensor) -> Tensor:
    """The largest step, up to 1, that keeps ``value`` non-negative. [..., K] -> [..., 1]."""
    limit = torch.where(change < 0, -value / change, torch.inf)
    return limit.amin(-1, keepdim=True).clamp(max=1)


def root(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The largest step t, up to 1, before ``a t² + 2 b t + c`` is zero, for c > 0."""
    square = b**2 - a * c
    below = square.clamp(min=0).sqrt() - b
    return torch.where((square > 0) & (below > 0), c / below, torch.inf).clamp(max=1)


def inner(part: Tensor) -> Tensor:
    """Whether all entries are positive and finite. [..., K] -> [..., 1]."""
    return ((part > 0) & part.isfinite()).all(-1, keepdim=True)


def backsolve(factor: Tensor, vector: Tensor) -> Tensor:
    """The solution of L Lᵀ x = vector."""
    half = torch.linalg.solve_triangular(factor, vector.unsqueeze(-1), upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole.squeeze(-1)


def dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1, keepdim=True)


def total(vector: Tensor) -> Tensor:
    return vector.sum(-1, keepdim=True)
