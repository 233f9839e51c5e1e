"""The Triton kernels give the numbers of the solvers that they replace; Triton's interpreter runs them on a CPU."""

import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

COMPARE_INTERIOR = """
import torch
import triton.language as tl
from pogm.pareto import interior, interior_kernel
from pogm.pareto.problem import normalise

interior.STEPS, interior_kernel._STEPS = 5, tl.constexpr(5)  # the interpreter is slow

generator = torch.Generator().manual_seed(0)
H = 0.3 + torch.randn(1, 3, 20, generator=generator, dtype=torch.float64)
problem = normalise(H @ H.mT, 0.5)
given = problem.G, problem.target
torch.testing.assert_close(
    interior_kernel._launch("minimise", *given, problem.radius), interior.solve_interior(*given, problem.radius)
)
conflicting = problem.G, problem.target - 1
ones = torch.ones(1, 1, dtype=torch.float64)
torch.testing.assert_close(interior_kernel._launch("project", *conflicting, ones), interior.project(*conflicting))
assert not interior_kernel._launch("project", *conflicting, 0 * ones).any()
"""

COMPARE_WEIGHTINGS = """
import torch
from pogm.pareto import weighting_kernels
from pogm.pareto.weightings import _bargain

generator = torch.Generator().manual_seed(0)
for K in (1, 3, 4):
    H = 0.3 + torch.randn(2, K, 20, generator=generator, dtype=torch.float64)
    A = H @ H.mT
    values, vectors = torch.func.vmap(weighting_kernels.jacobi)(A)
    torch.testing.assert_close(values.sort(-1).values, torch.linalg.eigvalsh(A))
    torch.testing.assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, A)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(K, dtype=A.dtype).expand_as(A))
    lengths = A.diagonal(dim1=-2, dim2=-1).sqrt()
    C = A / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    torch.testing.assert_close(torch.func.vmap(lambda one: weighting_kernels.nash_mtl(one, 40))(C), _bargain(C))
"""


@pytest.fixture(autouse=True)
def solver() -> None:
    """Replace the fixture that runs every test of this folder twice: the kernels are called directly."""


def test_interpreted_kernels_equal_the_solvers(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when Triton is imported, so a new process is needed
    compare = COMPARE_INTERIOR + COMPARE_WEIGHTINGS
    done = subprocess.run([sys.executable, "-c", compare], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
