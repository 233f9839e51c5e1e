"""Time and accuracy of the inner solver, the authors' solver and TorchJD's, on the same problems.

python benchmarks/solver.py [--out results.md]

One CPU thread, one problem at a time (and ours also 64 at a time). The relative gap is the duality gap of the
mixture divided by trace(G) / K: zero for the exact solution.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from pogm.pareto import gap, mixture, solve

RADIUS = 0.5
SIZES = (2, 3, 5, 8, 16, 64)
PROBLEMS = 64
Solver = Callable[[Tensor], Tensor]  # G [K, K] -> a mixture [K], exact or not


def problems(K: int, seed: int = 0) -> Tensor:
    """Return Gramians [PROBLEMS, K, K] of K updates with a common part, of unequal length, in 100 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(PROBLEMS, K, 100, generator=generator, dtype=torch.float64)
    common = torch.randn(PROBLEMS, 1, 100, generator=generator, dtype=torch.float64)
    lengths = 0.5 + torch.rand(PROBLEMS, K, 1, generator=generator, dtype=torch.float64)
    H = lengths * (own + 0.5 * common)
    return H @ H.mT / 100


def authors(G: Tensor) -> Tensor:
    """Return the mixture of the authors' code: autograd, torch.optim.SGD, and a synchronisation at every step."""
    G = G.float()
    K = len(G)
    scale = (torch.diag(G) + 1e-4).sqrt().mean()
    G = G / scale.pow(2)
    row = G.mean(1, keepdim=True)
    mean = row.mean(0, keepdim=True)
    logits = torch.zeros(K, 1, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=50 if K == 50 else 25, momentum=0.5)
    ball = (mean + 1e-4).sqrt() * RADIUS
    best, lowest = logits.detach().clone(), float("inf")
    for step in range(21):
        optimizer.zero_grad()
        p = torch.softmax(logits, 0)
        value = p.t().mm(row) + ball * (p.t().mm(G).mm(p) + 1e-4).sqrt()
        if value.item() < lowest:
            best, lowest = logits.detach().clone(), value.item()
        if step < 20:
            value.backward()
            optimizer.step()
    return torch.softmax(best, 0).flatten().double()


def torchjd() -> Solver | None:
    """Return TorchJD's CAGrad (a cone program by cvxpy and Clarabel), with the mixture computed from its weights."""
    try:
        from torchjd.aggregation import CAGradWeighting

        weighting = CAGradWeighting(c=RADIUS)
    except ImportError as error:
        print(f"TorchJD is left out: {error}. To include it: pip install 'torchjd[cagrad]'\n")
        return None

    def solver(G: Tensor) -> Tensor:
        extra = (weighting(G) - 1 / len(G)).clamp(min=0)
        return extra / extra.sum()

    return solver


def measure(solver: Solver, grams: Tensor, repeats: int) -> tuple[float, Tensor]:
    """Return the median milliseconds per solve, and the relative gap of each problem."""
    mixtures = torch.stack([solver(G) for G in grams])  # also the warm-up
    times = []
    for G in grams[:repeats]:
        start = time.perf_counter()
        solver(G)
        times.append(1e3 * (time.perf_counter() - start))
    unit = grams.diagonal(dim1=-2, dim2=-1).mean(-1)
    return median(times), gap(grams, mixtures, RADIUS) / unit


def table() -> str:
    head = ["K", "solver", "ms per solve", "times ours", "gap, median", "gap, worst"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    theirs = torchjd()
    for K in SIZES:
        grams = problems(K)
        solvers: dict[str, Solver] = {"ours": lambda G: mixture(G, RADIUS), "official": authors}
        if theirs is not None:
            solvers["TorchJD CAGrad"] = theirs
        ours = 0.0
        for name, solver in solvers.items():
            ms, gaps = measure(solver, grams, repeats=PROBLEMS)
            ours = ours or ms
            lines.append(f"| {K} | {name} | {ms:.3f} | {ms / ours:.1f} | {gaps.median():.0e} | {gaps.max():.0e} |")
        together = solve(grams, RADIUS)
        gaps = gap(grams, together.mixture, RADIUS) / grams.diagonal(dim1=-2, dim2=-1).mean(-1)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            solve(grams, RADIUS)
            times.append(1e3 * (time.perf_counter() - start) / PROBLEMS)
        ms, name = median(times), f"ours, {PROBLEMS} at a time"
        lines.append(f"| {K} | {name} | {ms:.3f} | {ms / ours:.2f} | {gaps.median():.0e} | {gaps.max():.0e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = f"""# The inner solver

`python benchmarks/solver.py`, torch {torch.__version__}, one CPU thread, {PROBLEMS} random problems for each K,
radius κ = {RADIUS}.

{table()}

"Ours" solves one problem at a time with Python floats; "64 at a time" is the batched solver that also runs on a GPU,
under `vmap` and in a CUDA graph. "Official" is the authors' method (20 steps of SGD on softmax weights) with autograd,
as in their code. "Gap" is the duality gap of the mixture π, relative to trace(G) / K.
"""
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
