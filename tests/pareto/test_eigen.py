"""Eigenvalues by Jacobi rotations, compared with LAPACK. The rotations run on a GPU; here they run on a CPU."""

import pytest
import torch
from pareto_inputs import KINDS, draw, gram
from support import needs_gpu, no_synchronisation
from torch.testing import assert_close

from pogm.pareto.eigen import _tournament, eigh, jacobi

sizes = pytest.mark.parametrize("K", [1, 2, 3, 5, 8, 16])


@pytest.mark.parametrize("kind", KINDS)
@sizes
def test_rotations_equal_lapack_and_rebuild_the_matrix(kind, K):
    A = gram(draw(kind, K, 2 * K, seed=K, count=3))
    values, vectors = jacobi(A)
    expected = torch.linalg.eigvalsh(A)
    size = expected.amax(-1).max().item()
    assert_close(values.sort(-1).values, expected, atol=1e-13 * size, rtol=0)
    assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, A, atol=1e-13 * size, rtol=0)
    assert_close(vectors.mT @ vectors, torch.eye(K, dtype=A.dtype).expand_as(A), atol=1e-13, rtol=0)


@sizes
def test_all_pairs_meet_once_and_rounds_have_disjoint_pairs(K):
    rounds, count = _tournament(K, torch.device("cpu"))
    assert (rounds == rounds.T).all()
    for number in range(count):
        assert (rounds == number).sum(-1).max() <= 1
    assert (rounds.fill_diagonal_(0) >= 0).all()


def test_vmap_equals_a_batch():
    A = gram(draw("plain", 5, 7, seed=0, count=4))
    for single, batch in zip(torch.func.vmap(jacobi)(A), jacobi(A), strict=True):
        assert_close(single, batch)


def test_zero_matrix_has_zero_eigenvalues():
    values, vectors = jacobi(torch.zeros(4, 4, dtype=torch.float64))
    assert values.tolist() == [0] * 4
    assert vectors.isfinite().all()


@pytest.mark.gpu
@needs_gpu
@sizes
def test_gpu_does_not_synchronise(K):
    A = gram(draw("plain", K, K + 1, seed=0, count=4))
    there = A.cuda()
    with no_synchronisation():
        values, _ = eigh(there)
    assert_close(values.cpu().sort(-1).values, torch.linalg.eigvalsh(A))
