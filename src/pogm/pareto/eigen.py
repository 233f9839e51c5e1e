"""Eigenvalues of small symmetric matrices, without a synchronisation with the host and under ``vmap``."""

import torch
from torch import Tensor

from pogm.pareto.interior import has_kernel

SWEEPS = 10  # every sweep rotates all pairs once; this many reach rounding error for up to 16 rows
RANK = 1e-12  # eigenvalues below this fraction of the largest count as zero: float32 updates are not more precise


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [..., K], in any order, and orthonormal eigenvectors in the columns of [..., K, K].

    On a CPU this is LAPACK. ``torch.linalg.eigh`` on a GPU waits for the device, which a CUDA graph does not allow.
    There, Jacobi rotations are one Triton kernel or, without Triton, torch operations.
    """
    if A.device.type == "cpu":
        values, vectors = torch.linalg.eigh(A)
    elif has_kernel(A):
        from pogm.pareto import weighting_kernels  # imports Triton

        values, vectors = weighting_kernels.jacobi(A)
    else:
        values, vectors = jacobi(A)
    return values, vectors


def jacobi(A: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `eigh` by a fixed number of sweeps of Jacobi rotations; disjoint pairs of rows are rotated together."""
    K = A.shape[-1]
    rounds, count = _tournament(K, A.device)
    first = torch.ones(K, K, dtype=A.dtype, device=A.device).triu(1)  # 1 where i < j
    vectors = torch.eye(K, dtype=A.dtype, device=A.device).expand_as(A)
    for number in range(SWEEPS * count):
        pairs = (rounds == number % count).to(A.dtype)  # [K, K]: 1 for the pairs (i, j) of this round
        diagonal, entry = A.diagonal(dim1=-2, dim2=-1), (A * pairs).sum(-1)  # a_ii and a_ij
        difference = (pairs @ diagonal.unsqueeze(-1)).squeeze(-1) - diagonal  # a_jj − a_ii
        order = 2 * (pairs * first).sum(-1) - 1  # 1 for the first row of a pair, −1 for the second
        sign = torch.where(difference == 0, order, difference.sign())
        size = difference.abs() + torch.hypot(difference, 2 * entry)
        tangent = sign * 2 * entry / torch.where(size > 0, size, 1.0)
        cosine = (1 + tangent.square()).rsqrt()
        rotation = torch.diag_embed(cosine) + (cosine * tangent).unsqueeze(-1) * pairs
        A, vectors = rotation.mT @ A @ rotation, vectors @ rotation
        A = (A + A.mT) / 2  # exactly symmetric, so that both rows of a pair find the same angle
    return A.diagonal(dim1=-2, dim2=-1), vectors


def _tournament(K: int, device: torch.device) -> tuple[Tensor, int]:
    """Return the round in which rows i and j are a pair, [K, K], −1 if i = j; and the number of rounds of a sweep.

    The pairs of a round are disjoint, and a sweep has every pair once.
    """
    count = K - 1 + K % 2
    i, j = torch.arange(K, device=device).unsqueeze(-1), torch.arange(K, device=device)
    total = torch.where(i == count, 2 * j, torch.where(j == count, 2 * i, i + j))
    return torch.where(i == j, -1, total % count), count
