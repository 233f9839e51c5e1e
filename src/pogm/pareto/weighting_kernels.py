"""Iterations on small matrices as Triton kernels: Jacobi rotations (`eigen.py`) and Newton steps of Nash-MTL.

As torch operations, these iterations launch hundreds of small kernels. Here they are one launch, with one program for
each matrix, which ends when it has converged. Matrices are padded with zeros to a power of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pogm.pareto.eigen import SWEEPS
from pogm.pareto.interior_kernel import dot, invert, multiply, solve

CONVERGED = 1e-18  # rotations end when the largest off-diagonal entry is this fraction of the largest entry
SMALL_DECREMENT = 1e-9  # steps end at this Newton decrement; the error is then about its square


@torch.library.custom_op("pogm::jacobi", mutates_args=())
def jacobi(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [..., K] and eigenvectors [..., K, K] of symmetric matrices, as `eigen.jacobi`."""
    rows = A.contiguous()
    values, vectors = torch.empty_like(rows[..., 0]), torch.empty_like(rows)
    K = A.shape[-1]
    size = _padded(K)
    count = K - 1 + K % 2  # rounds of a sweep, see `eigen._tournament`
    jacobi_kernel[(values.numel() // K,)](rows, values, vectors, K, count, size, num_warps=_warps(size))
    return values, vectors


@torch.library.custom_op("pogm::nash_mtl", mutates_args=())
def nash_mtl(C: Tensor, steps: int) -> Tensor:
    """Return b > 0 [..., K] with C b = 1 / b, by at most ``steps`` Newton steps, as `weightings.nash_mtl_weights`."""
    rows = C.contiguous()
    b = torch.empty_like(rows[..., 0])
    K = C.shape[-1]
    size = _padded(K)
    nash_mtl_kernel[(b.numel() // K,)](rows, b, K, steps, size, num_warps=_warps(size))
    return b


@jacobi.register_fake
def _(A: Tensor) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1]), A.new_empty(A.shape)


@nash_mtl.register_fake
def _(C: Tensor, steps: int) -> Tensor:
    return C.new_empty(C.shape[:-1])


@jacobi.register_vmap
def _(info: Any, axes: tuple[int], A: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    return jacobi(A.movedim(axes[0], 0)), (0, 0)


@nash_mtl.register_vmap
def _(info: Any, axes: tuple[int, None], C: Tensor, steps: int) -> tuple[Tensor, int]:
    return nash_mtl(C.movedim(axes[0], 0), steps), 0


def _padded(K: int) -> int:
    return 1 << (K - 1).bit_length()


def _warps(size: int) -> int:
    return min(max(size // 4, 1), 16)


_SWEEPS = tl.constexpr(SWEEPS)
_CONVERGED = tl.constexpr(CONVERGED)
_SMALL_DECREMENT = tl.constexpr(SMALL_DECREMENT)


@triton.jit
def jacobi_kernel(A_pointer, values_pointer, vectors_pointer, K, count, size: tl.constexpr):
    """Rotate one matrix until it is diagonal, for at most SWEEPS sweeps; see `eigen.jacobi`."""
    matrix = tl.program_id(0)
    i = tl.arange(0, size)
    valid = i < K
    inner = valid[:, None] & valid[None, :]
    is_diagonal = i[:, None] == i[None, :]
    offsets = matrix * K * K + i[:, None] * K + i[None, :]
    A = tl.load(A_pointer + offsets, inner, 0.0)
    vectors = tl.where(is_diagonal, 1.0, 0.0) + 0.0 * A
    number = 0
    going = True
    while going:
        # Rows i and j are a pair if i + j = turn (mod count). If K is even, the last row and the row left over are one.
        turn = number % count
        partner = (turn + count - i) % count
        left_over = turn * ((count + 1) // 2) % count
        partner = tl.where(partner == i, tl.where(count < K, count, i), partner)
        partner = tl.where(i == count, left_over, partner)
        partner = tl.where(valid, partner, i)
        columns = tl.broadcast_to(partner[None, :], (size, size))
        rows = tl.broadcast_to(partner[:, None], (size, size))

        diagonal = tl.sum(tl.where(is_diagonal, A, 0.0), 1)  # a_ii
        is_pair = (i[None, :] == partner[:, None]) & ~is_diagonal
        entry = tl.sum(tl.where(is_pair, A, 0.0), 1)  # a_ij
        difference = tl.sum(tl.where(is_pair, diagonal[None, :] - diagonal[:, None], 0.0), 1)  # a_jj − a_ii
        sign = tl.where((difference > 0) | ((difference == 0) & (i < partner)), 1.0, -1.0)
        length = tl.abs(difference) + tl.sqrt(difference * difference + 4 * entry * entry)
        tangent = sign * 2 * entry / tl.where(length > 0, length, 1.0)
        cosine = 1 / tl.sqrt(1 + tangent * tangent)
        sine = -cosine * tangent  # of the partner
        A = A * cosine[None, :] + tl.gather(A, columns, 1) * sine[None, :]
        A = A * cosine[:, None] + tl.gather(A, rows, 0) * sine[:, None]
        A = (A + tl.trans(A)) / 2
        vectors = vectors * cosine[None, :] + tl.gather(vectors, columns, 1) * sine[None, :]

        number += 1
        largest = tl.max(tl.max(tl.abs(A), 1), 0)
        off_diagonal = tl.max(tl.max(tl.where(is_diagonal, 0.0, tl.abs(A)), 1), 0)
        going = (number < _SWEEPS * count) & (off_diagonal > _CONVERGED * largest)
    tl.store(values_pointer + matrix * K + i, tl.sum(tl.where(is_diagonal, A, 0.0), 1), valid)
    tl.store(vectors_pointer + offsets, vectors, inner)


@triton.jit
def nash_mtl_kernel(C_pointer, out_pointer, K, steps, size: tl.constexpr):
    """Take Newton steps for one matrix; see `weightings.nash_mtl_weights`."""
    problem = tl.program_id(0)
    i = tl.arange(0, size)
    valid = i < K
    is_diagonal = i[:, None] == i[None, :]
    inner = valid[:, None] & valid[None, :]
    C = tl.load(C_pointer + problem * K * K + i[:, None] * K + i[None, :], inner, 0.0)
    b = tl.sum(0.0 * C, 1) + 1
    step = 0
    going = True
    while going:
        gradient = tl.where(valid, multiply(C, b) - 1 / b, 0.0)
        M = C + tl.where(is_diagonal, (1 / (b * b))[:, None], 0.0)
        scale = 1 / tl.sqrt(tl.sum(tl.where(is_diagonal, M, 0.0), 1))
        change = solve(M, invert(M * scale[:, None] * scale[None, :], size), scale, gradient)
        decrement = tl.sqrt(tl.maximum(dot(gradient, change), 0.0))
        b = b - change / tl.where(decrement < 0.25, 1.0, 1 + decrement)
        step += 1
        going = (step < steps) & (decrement > _SMALL_DECREMENT)
    tl.store(out_pointer + problem * K + i, b, valid)
