"""Time of a training step of one trial: alone, and in a batch of trials that train together by vmap, on a CPU.

The trials are those of a sweep on a table: each domain is held out, for several seeds. Both are measured in turn in the
same process, several times; a figure is the median over turns of the ratio. CPU time is measured, not wall time, since
the machine may be shared. The network has few weights, so that a step alone consists mostly of the overhead of Python
and of the operations; the batch divides this overhead by the number of trials. The products of matrices themselves do
not become faster.

Run: python benchmarks/batched_trials.py [--turns 5] [--out benchmarks/results/batched_trials_cpu.json]
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

from pogm._system.files import write_atomic
from pogm.benchmark.plan.parsing import build_trial
from pogm.data.datasets.base import Domain
from pogm.data.datasets.heart_disease import HeartDisease
from pogm.engine.session import Engine, Session
from pogm.engine.task import Task

ALGORITHMS = ("ERM", "GroupDRO", "POGM")
BATCH_SIZES = (8, 32)
TRIALS = (4, 16, 64)
STEPS = 20  # of a turn


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    domains = make_domains()
    rows = []
    for algorithm in ALGORITHMS:
        for size in BATCH_SIZES:
            alone = Session([task(algorithm, size, 0, domains)], Engine())
            for count in TRIALS:
                batch = Session([task(algorithm, size, number, domains) for number in range(count)], Engine())
                row = {"algorithm": algorithm, "batch_size": size, "trials": count}
                rows.append(row | compare(alone, batch, options.turns))
                print(rows[-1], flush=True)
    if options.out:
        content = {"torch": torch.__version__, "cores": os.cpu_count(), "rows": rows}
        write_atomic(options.out, json.dumps(content, indent=1).encode() + b"\n")


def make_domains() -> list[Domain]:
    """Return random numbers in the shape of HeartDisease; a step does not depend on their values."""
    generator = torch.Generator().manual_seed(0)
    counts = (303, 294, 123, 200)
    shape = HeartDisease.input_shape
    return [
        Domain(torch.randn(n, *shape, generator=generator), torch.randint(2, (n,), generator=generator)) for n in counts
    ]


def task(algorithm: str, batch_size: int, number: int, domains: list[Domain]) -> Task:
    """Return the task of a trial of the sweep."""
    held_out = HeartDisease.domains[number % 4]
    trial = build_trial("HeartDisease", algorithm, [held_out], seed=number // 4, settings=[f"batch_size={batch_size}"])
    made = trial.task(None)
    return Task(**{**vars(made), "load": lambda: domains})


def compare(alone: Session, batch: Session, turns: int) -> dict[str, float]:
    """Return milliseconds of CPU time per step and trial of both, and the median of their ratio."""
    assert batch.uses_vmap
    for session in (alone, batch):
        session.step()
    pairs = [(cpu_time(alone), cpu_time(batch) / len(batch.tasks)) for _ in range(turns)]
    return {
        "alone_ms": round(statistics.median(first for first, _ in pairs), 3),
        "batched_ms": round(statistics.median(second for _, second in pairs), 3),
        "ratio": round(statistics.median(first / second for first, second in pairs), 2),
    }


def cpu_time(session: Session) -> float:
    """Return the milliseconds of CPU time of a step."""
    start = time.process_time()
    for _ in range(STEPS):
        session.step()
    return 1000 * (time.process_time() - start) / STEPS


if __name__ == "__main__":
    main()
