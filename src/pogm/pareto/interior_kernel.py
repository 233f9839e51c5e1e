"""The solvers of `interior.py` as Triton kernels: one launch, one program for each problem, all numbers in registers.

`interior.py` launches hundreds of small kernels for one solve. Here a program repeats the same Newton steps until the
complementarity is at the level of rounding, and then compares the same candidates as `interior.py`. Vectors are padded
to a power of two; entries at or after K are 0. Symmetric matrices are inverted by Gauss-Jordan elimination after
scaling their diagonal to 1, and every solution is refined once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pogm.pareto.face_enumeration import DESCENT, STATIONARY, TIE
from pogm.pareto.face_enumeration import RIDGE as FACE_RIDGE
from pogm.pareto.interior import BOUNDARY, RIDGE, STEPS, SUPPORTS
from pogm.pareto.problem import ZERO_MIXTURE

CONVERGED = 1e-12  # mean complementarity at which Newton steps end; the closed forms then give the exact solution


@torch.library.custom_op("pogm::minimise_interior", mutates_args=())
def minimise(G: Tensor, b: Tensor, radius: Tensor) -> Tensor:
    """Return the mixture π [..., K], as `interior.solve_interior`. ``radius`` is [..., 1]."""
    return _launch("minimise", G, b, radius)


@torch.library.custom_op("pogm::project_interior", mutates_args=())
def project(G: Tensor, b: Tensor, needed: Tensor) -> Tensor:
    """Return y [..., K], as `interior.project`, and 0 for problems that are not ``needed`` [..., 1]."""
    return _launch("project", G, b, needed)


@minimise.register_fake
@project.register_fake
def _(G: Tensor, b: Tensor, third: Tensor) -> Tensor:
    return b.new_empty((*torch.broadcast_shapes(G.shape[:-2], b.shape[:-1], third.shape[:-1]), b.shape[-1]))


def _add_batch_axis(operation: Any) -> None:
    """Let `vmap` call an operation once, with the mapped axis as another axis of problems."""

    def over_batch(info: Any, axes: tuple[int | None, ...], *args: Tensor) -> tuple[Tensor, int]:
        moved = [
            arg.expand(info.batch_size, *arg.shape) if axis is None else arg.movedim(axis, 0)
            for arg, axis in zip(args, axes, strict=True)
        ]
        shape = torch.broadcast_shapes(*(arg.shape[1 : arg.ndim - (n == 0) - 1] for n, arg in enumerate(moved)))
        sizes = [(info.batch_size, *shape, *arg.shape[arg.ndim - (n == 0) - 1 :]) for n, arg in enumerate(moved)]
        aligned = [
            arg.reshape(info.batch_size, *[1] * (len(size) - arg.ndim), *arg.shape[1:]).expand(size)
            for arg, size in zip(moved, sizes, strict=True)
        ]
        return operation(*aligned), 0

    operation.register_vmap(over_batch)


_add_batch_axis(minimise)
_add_batch_axis(project)


def _launch(name: str, G: Tensor, b: Tensor, third: Tensor) -> Tensor:
    """Run a kernel with one program for each problem, on the device of G."""
    K = b.shape[-1]
    shape = torch.broadcast_shapes(G.shape[:-2], b.shape[:-1], third.shape[:-1])
    rows = G.expand(*shape, K, K).reshape(-1, K, K).contiguous()
    b, third = b.expand(*shape, K).reshape(-1, K).contiguous(), third.expand(*shape, 1).reshape(-1).contiguous()
    out = torch.empty_like(b)
    size = 1 << (K - 1).bit_length()
    kernels = {"minimise": minimise_kernel, "project": project_kernel}
    kernels[name][(len(b),)](rows, b, third, out, K, size, num_warps=4 if size < 64 else 8)
    return out.view(*shape, K)


_STEPS = tl.constexpr(STEPS)
_RIDGE = tl.constexpr(RIDGE)
_BOUNDARY = tl.constexpr(BOUNDARY)
_CONVERGED = tl.constexpr(CONVERGED)
_FACE_RIDGE = tl.constexpr(FACE_RIDGE)
_TIE, _STATIONARY, _DESCENT = tl.constexpr(TIE), tl.constexpr(STATIONARY), tl.constexpr(DESCENT)
_ZERO_SQUARE = tl.constexpr(ZERO_MIXTURE**2)
_SUPPORT_0, _SUPPORT_1, _SUPPORT_2, _SUPPORT_3 = (tl.constexpr(least) for least in SUPPORTS)
_LARGEST_FLOAT = tl.constexpr(1e300)


@triton.jit
def multiply(M, v):
    """Return M v."""
    return tl.sum(M * v[None, :], 1)


@triton.jit
def invert(M, size: tl.constexpr):
    """Return the inverse of a positive-definite matrix by Gauss-Jordan elimination in place."""
    i = tl.arange(0, size)
    for k in range(size):
        row = tl.sum(tl.where(i[:, None] == k, M, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == k, M, 0.0), 1)
        pivot = tl.sum(tl.where(i == k, row, 0.0), 0)
        row = tl.where(i == k, 1.0, row) / pivot
        column = tl.where(i == k, column - 1.0, column)
        kept = tl.where(i[None, :] == k, tl.where(i[:, None] == k, 1.0, 0.0), M)
        M = kept - column[:, None] * row[None, :]
    return M


@triton.jit
def solve(M, inverse, scale, v):
    """Return x of M x = v, refined once; ``inverse`` is that of M with its diagonal scaled to 1 by ``scale``²."""
    x = scale * multiply(inverse, scale * v)
    return x + scale * multiply(inverse, scale * (v - multiply(M, x)))


@triton.jit
def dot(a, b):
    return tl.sum(a * b, 0)


@triton.jit
def max_step(value, change, valid):
    """Return the largest step length, up to 1, that keeps ``value`` non-negative."""
    limit = tl.where(valid & (change < 0), -value / tl.where(change < 0, change, -1.0), 1.0)
    return tl.minimum(tl.min(limit, 0), 1.0)


@triton.jit
def max_quadratic_step(a, b, c):
    """Return the largest t, up to 1, that keeps a t² + 2 b t + c non-negative, for c > 0."""
    square = b * b - a * c
    below = tl.sqrt(tl.maximum(square, 0.0)) - b
    found = (square > 0) & (below > 0)
    return tl.where(found, tl.minimum(c / tl.where(found, below, 1.0), 1.0), 1.0)


@triton.jit
def all_positive(v, valid):
    good = (v > 0) & (v < _LARGEST_FLOAT)  # False for NaN
    return tl.min(tl.where(good | ~valid, 1, 0), 0) == 1


@triton.jit
def is_positive(x):
    return (x > 0) & (x < _LARGEST_FLOAT)


@triton.jit
def clip_to_simplex(v):
    positive = tl.where(v > 0, v, 0.0)
    return positive / tl.sum(positive, 0)


@triton.jit
def consider(candidate, best, rank, G, b, radius, diagonal, valid):
    """Return the better of two mixtures and its rank; see `face_enumeration.choose_best`."""
    products = multiply(G, candidate)
    square = tl.maximum(dot(candidate, products), 0.0)
    length = tl.sqrt(square)
    level = dot(candidate, b) + radius * length
    aligned = tl.where(valid, b + radius * products / length, _LARGEST_FLOAT)
    gap = level - tl.min(aligned, 0)
    found = tl.maximum(gap, _TIE) + _TIE / 8 * dot(candidate, candidate)
    found = tl.where(level < -_DESCENT, found / (1 + 1e10), found)
    found = tl.where(square <= _ZERO_SQUARE * dot(candidate, diagonal), _STATIONARY, found)
    found = tl.where(found < _LARGEST_FLOAT, found, _LARGEST_FLOAT)  # also NaN
    better = found < rank
    return tl.where(better, candidate, best), tl.where(better, found, rank)


@triton.jit
def refine(mixture, G, b, radius, face, inverse):
    """Take one Newton step on the optimality conditions of a face; see `face_enumeration.refine`."""
    products = multiply(G, mixture)
    length = tl.sqrt(tl.maximum(dot(mixture, products), 0.0))
    level = dot(mixture, b) + radius * length
    residual = length * (level - b) / tl.maximum(radius, 1e-30) - products
    change = multiply(inverse, face * residual)
    return clip_to_simplex(mixture + multiply(inverse, face * multiply(G, change)))


@triton.jit
def support(number):
    """Return the threshold of a candidate face, relative to the largest weight; see `interior.guess_faces`."""
    first = tl.where(number == 1, _SUPPORT_1, _SUPPORT_0)
    return tl.where(number >= 3, _SUPPORT_3, tl.where(number == 2, _SUPPORT_2, first))


@triton.jit
def invert_face(G, face, diagonal, size: tl.constexpr):
    """Return G_S⁻¹, with the identity outside S."""
    i = tl.arange(0, size)
    is_diagonal = i[:, None] == i[None, :]
    ridge = 1 - face + _FACE_RIDGE * face * diagonal
    return invert(G * face[:, None] * face[None, :] + tl.where(is_diagonal, ridge[:, None], 0.0), size)


@triton.jit
def minimise_kernel(G_pointer, b_pointer, radius_pointer, out_pointer, K, size: tl.constexpr):
    """Solve one problem of `interior.solve_interior`."""
    problem = tl.program_id(0)
    i = tl.arange(0, size)
    valid = i < K
    is_diagonal = i[:, None] == i[None, :]
    inner = valid[:, None] & valid[None, :]
    G = tl.load(G_pointer + problem * K * K + i[:, None] * K + i[None, :], inner, 0.0)
    b = tl.load(b_pointer + problem * K + i, valid, 0.0)
    radius = tl.maximum(tl.load(radius_pointer + problem), 1e-12)
    diagonal = tl.sum(tl.where(is_diagonal, G, 0.0), 1)

    point = tl.where(valid, 0.0 * b + 1, 0.0) / K
    uniform = point
    bound = tl.sqrt(tl.maximum(dot(point, multiply(G, point)), 0.0)) + 1
    dual = point * 0.0
    level = tl.min(tl.where(valid, b, _LARGEST_FLOAT), 0) - 1
    slack = tl.where(valid, b - level, 0.0)
    step = 0
    going = True
    while going:
        G_point, G_dual = multiply(G, point), multiply(G, dual)
        inside = bound * bound - dot(point, G_point)
        room = radius * radius - dot(dual, G_dual)
        between = bound * radius - dot(point, G_dual)
        twice = tl.sqrt(2 * (1 + between / tl.sqrt(inside * room)))
        w_0 = (bound / tl.sqrt(inside) + radius / tl.sqrt(room)) / twice
        w = (point / tl.sqrt(inside) + dual / tl.sqrt(room)) / twice
        G_w = multiply(G, w)
        stretch = tl.sqrt(inside / room)
        head = 2 * w_0 * w_0 - 1
        safe = tl.where(valid, point, 1.0)
        ratio = tl.where(valid, slack / safe + _RIDGE * diagonal / stretch, 1.0)
        M = (G - 2 / head * G_w[:, None] * G_w[None, :]) / stretch + tl.where(is_diagonal, ratio[:, None], 0.0)
        scale = 1 / tl.sqrt(tl.sum(tl.where(is_diagonal, M, 0.0), 1))
        inverse = invert(M * scale[:, None] * scale[None, :], size)
        by_level = solve(M, inverse, scale, tl.where(valid, 1.0, 0.0))

        centre = (dot(point, slack) + between) / (K + 1)
        l_0, l = w_0 * radius - dot(G_w, dual), w * (radius - dot(G_w, dual) / (1 + w_0)) - dual
        length, d_bound, d_level = centre * 0.0, centre * 0.0, centre * 0.0
        d_point, d_dual, d_slack = point * 0.0, point * 0.0, point * 0.0
        for corrects in range(2):  # predictor, then corrector
            rest = tl.maximum(1 - length, 1e-2)
            target = corrects * centre * rest * rest * rest
            # Product of the primal and the dual predictor step in the second cone, scaled; at first it is 0.
            along, across = dot(G_w, d_point), -dot(G_w, d_dual)
            x_0, x = w_0 * d_bound - along, d_point + w * (along / (1 + w_0) - d_bound)
            z_0, z = across, w * (across / (1 + w_0)) - d_dual
            v_0, v = x_0 * z_0 + dot(x, multiply(G, z)), x_0 * z + z_0 * x
            u_0 = (l_0 * v_0 - dot(v, multiply(G, l))) / room
            u = (v - u_0 * l) / l_0
            along = dot(G_w, u)
            # The direction of (π, t, a, μ, s) for this target and these second-order terms.
            g_0 = target * bound / inside - radius - (w_0 * u_0 - along) / stretch
            g = dual - target / inside * point - (u + w * (along / (1 + w_0) - u_0)) / stretch
            rhs = (target - d_point * d_slack) / safe - slack + multiply(G, g) + 2 * w_0 / head * g_0 * G_w
            fixed = solve(M, inverse, scale, tl.where(valid, rhs, 0.0))
            d_level = -tl.sum(fixed, 0) / tl.sum(by_level, 0)
            d_point = fixed + by_level * d_level
            across = dot(G_w, d_point)
            d_bound = (stretch * g_0 + 2 * w_0 * across) / head
            d_dual = -(g + (2 * w_0 * d_bound * w - 2 * across * w - d_point) / stretch)
            G_change = multiply(G, d_dual)
            d_slack = tl.where(valid, G_change - d_level, 0.0)
            # The largest step length, up to 1, that stays in all cones.
            square = d_bound * d_bound - dot(d_point, multiply(G, d_point))
            primal = max_quadratic_step(square, bound * d_bound - dot(G_point, d_point), inside)
            conic = max_quadratic_step(-dot(d_dual, G_change), -dot(G_dual, d_dual), room)
            linear = tl.minimum(max_step(point, d_point, valid), max_step(slack, d_slack, valid))
            length = tl.minimum(linear, tl.minimum(primal, conic))
        length = _BOUNDARY * length
        new_point, new_bound = point + length * d_point, bound + length * d_bound
        new_dual, new_level = dual + length * d_dual, level + length * d_level
        new_slack = tl.where(valid, b + multiply(G, new_dual) - new_level, 0.0)
        good = all_positive(new_point, valid) & all_positive(new_slack, valid)
        good = good & is_positive(new_bound * new_bound - dot(new_point, multiply(G, new_point)))
        good = good & is_positive(radius * radius - dot(new_dual, multiply(G, new_dual)))
        point, bound = tl.where(good, new_point, point), tl.where(good, new_bound, bound)
        dual, level = tl.where(good, new_dual, dual), tl.where(good, new_level, level)
        slack = tl.where(good, new_slack, slack)
        step += 1
        going = (step < _STEPS) & good & (centre > _CONVERGED)

    # Candidates: uniform, π, a; then for each face the closed form and π on the face, both refined.
    mixture = clip_to_simplex(point)
    best, rank = uniform, 0.0 * radius + _LARGEST_FLOAT
    for number in range(3):
        candidate = tl.where(number == 0, uniform, tl.where(number == 1, mixture, clip_to_simplex(dual)))
        best, rank = consider(candidate, best, rank, G, b, radius, diagonal, valid)
    previous = point * 0.0
    for number in range(5):
        least = support(number) * tl.max(mixture, 0)
        face = tl.where(mixture > tl.where(number == 4, slack, least), 0.0 * b + 1, 0.0)
        if tl.max(tl.abs(face - previous), 0) > 0:  # most thresholds give the same face
            inverse = invert_face(G, face, diagonal, size)
            nearest = tl.sum(inverse * face[:, None] * face[None, :], 1)
            nearest = nearest / tl.sum(nearest, 0)
            along = multiply(inverse, face * b)
            along = along - tl.sum(along, 0) * nearest
            room = tl.maximum(radius * radius - tl.maximum(dot(along, multiply(G, along)), 0.0), 1e-30)
            distance = tl.maximum(dot(nearest, multiply(G, nearest)), 0.0)
            closed = nearest - along * tl.sqrt(distance / room)
            for kind in range(2):
                candidate = clip_to_simplex(tl.where(kind == 0, closed, mixture * face))
                candidate = refine(candidate, G, b, radius, face, inverse)
                best, rank = consider(candidate, best, rank, G, b, radius, diagonal, valid)
        previous = face
    tl.store(out_pointer + problem * K + i, best, valid)


@triton.jit
def consider_projection(candidate, best, violation, G, b, valid):
    """Return the better of two vectors y ≥ 0, and its violation of s = G y + b ≥ 0, y·s = 0."""
    aligned = tl.where(valid, b + multiply(G, candidate), 0.0)
    found = tl.maximum(tl.max(-aligned, 0), 0.0) + tl.abs(dot(candidate, aligned))
    better = found < violation  # False for NaN
    return tl.where(better, candidate, best), tl.where(better, found, violation)


@triton.jit
def project_kernel(G_pointer, b_pointer, needed_pointer, out_pointer, K, size: tl.constexpr):
    """Solve one problem of `interior.project`."""
    problem = tl.program_id(0)
    i = tl.arange(0, size)
    valid = i < K
    best = tl.zeros([size], tl.float64)
    if tl.load(needed_pointer + problem) != 0:
        is_diagonal = i[:, None] == i[None, :]
        inner = valid[:, None] & valid[None, :]
        G = tl.load(G_pointer + problem * K * K + i[:, None] * K + i[None, :], inner, 0.0)
        b = tl.load(b_pointer + problem * K + i, valid, 0.0)
        sizes = tl.sqrt(tl.sum(tl.where(is_diagonal, G, 0.0), 1))
        sizes = tl.where(sizes > 0, sizes, 1.0)
        G, b = G / sizes[:, None] / sizes[None, :], b / sizes
        diagonal = tl.sum(tl.where(is_diagonal, G, 0.0), 1)
        y = tl.where(valid, 1.0, 0.0) + 0.0 * b
        slack = y
        step = 0
        going = True
        while going:
            ratio = tl.where(valid, slack / tl.where(valid, y, 1.0) + _RIDGE, 1.0)
            M = G + tl.where(is_diagonal, ratio[:, None], 0.0)
            scale = 1 / tl.sqrt(tl.sum(tl.where(is_diagonal, M, 0.0), 1))
            inverse = invert(M * scale[:, None] * scale[None, :], size)
            residual = multiply(G, y) + b - slack
            centring = dot(y, slack) / K
            dy = solve(M, inverse, scale, -residual - slack)
            ds = multiply(G, dy) + residual
            length = tl.minimum(max_step(y, dy, valid), max_step(slack, ds, valid))
            remaining = dot(y + length * dy, slack + length * ds) / K
            rest = tl.minimum(tl.maximum(remaining / centring, 1e-4), 1.0)
            target = centring * rest * rest * rest - dy * ds
            safe = tl.where(valid, y, 1.0)
            dy = solve(M, inverse, scale, tl.where(valid, -residual - slack + target / safe, 0.0))
            ds = multiply(G, dy) + residual
            length = _BOUNDARY * tl.minimum(max_step(y, dy, valid), max_step(slack, ds, valid))
            new_y, new_slack = y + length * dy, slack + length * ds
            good = all_positive(new_y, valid) & all_positive(new_slack, valid)
            y, slack = tl.where(good, new_y, y), tl.where(good, new_slack, slack)
            step += 1
            going = (step < _STEPS) & good & (centring > _CONVERGED)

        best, violation = consider_projection(best, best, tl.sum(best, 0) + _LARGEST_FLOAT, G, b, valid)
        best, violation = consider_projection(y, best, violation, G, b, valid)
        largest = tl.max(y, 0)
        previous = y * 0.0
        for number in range(5):
            face = tl.where(valid & (y > tl.where(number == 4, slack, support(number) * largest)), 0.0 * b + 1, 0.0)
            if tl.max(tl.abs(face - previous), 0) > 0:
                inverse = invert_face(G, face, diagonal, size)
                closed = -multiply(inverse, face * b)
                closed = tl.maximum(closed - multiply(inverse, face * (multiply(G, closed) + b)), 0.0)
                best, violation = consider_projection(closed, best, violation, G, b, valid)
            previous = face
        best = best / sizes
    tl.store(out_pointer + problem * K + i, best, valid)
