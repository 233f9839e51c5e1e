"""Cost of POGM's centre: rounds around ERM's trajectory and around the mean, measured alternately in one process.

python benchmarks/centre.py --device cuda [--only mnist pacs] [--small] [--out benchmarks/results/centre_h200.json]

Two workloads: a ResNet-50 on 3 × 32 noise images of PACS's shape, drawn and augmented, and the MNIST CNN on noise of
ColoredMNIST's shape (2 × 64). Every variant has its own session. Every repeat measures all variants in turn, so that
all of them suffer from a slow moment of the machine; ratios are computed within a repeat. The script prints the median
and the quartiles of the repeats. Times are per minibatch; compile time is not included. Memory is the peak of building
a session and of its first rounds, without the memory that was in use before.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import clock
import noise
from clock import Spread
from rows.pacs import photographs
from rows.run import SMALL, Size, facts

from pogm.algorithms.erm import ERM
from pogm.algorithms.pogm import POGM
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.task import Task

VARIANTS = {
    "ERM": ERM(),
    "mean, E = 1": POGM(centre="mean"),
    "erm, E = 1": POGM(),
    "mean, E = 5": POGM(centre="mean", inner_steps=5),
    "erm, E = 5": POGM(inner_steps=5),
}
AGAINST = {"erm, E = 1": "mean, E = 1", "erm, E = 5": "mean, E = 5"}


def task(workload: str, variant: str, size: Size, precision: str) -> Task:
    """Return the task of one variant and one workload."""
    if workload == "pacs":
        return photographs(VARIANTS[variant], size, precision)
    return noise.colored_mnist(
        VARIANTS[variant], data=None, images=size.images, batch_size=size.batch, seed=0, lr=1e-3, precision=precision
    )


def measure(workload: str, engine: Engine, size: Size, precision: str) -> dict[str, Any]:
    """Return milliseconds per minibatch, gigabytes, and ratios of every variant."""
    device, sessions, memory = engine.torch_device(), {}, {}
    for variant in VARIANTS:
        with clock.Memory(device) as used:
            sessions[variant] = session = Session([task(workload, variant, size, precision)], engine)
            for _ in range(2):
                session.step()
        memory[variant] = used.peak / 1e9
    counts = {}
    for variant, session in sessions.items():
        session.step()
        counts[variant] = min(max(int(size.lasting / clock.time_call(session.step, device)), 1), 1000)
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(size.repeats):
        for variant, session in sessions.items():
            per_round = clock._mean_seconds(session.step, device, counts[variant])
            times[variant].append(1e3 * per_round / VARIANTS[variant].minibatches)
    found = {variant: {"ms": asdict(Spread.of(values)), "gb": memory[variant]} for variant, values in times.items()}
    for variant, other in AGAINST.items():
        ratios = [mine / theirs for mine, theirs in zip(times[variant], times[other], strict=True)]
        found[variant]["ratio"] = asdict(Spread.of(ratios))
    return found


def table(found: dict[str, Any]) -> list[str]:
    """Return the results of a workload as a Markdown table."""
    lines = ["| | ms per minibatch | peak memory, GB | over the mean centre |", "|---|---|---|---|"]
    for variant, numbers in found.items():
        ms, ratio = numbers["ms"], numbers.get("ratio")
        over = f"{ratio['value']:.3f} ({ratio['low']:.3f}–{ratio['high']:.3f})" if ratio else ""
        middle = f"{ms['value']:.3g} ({ms['low']:.3g}–{ms['high']:.3g})"
        lines.append(f"| {variant} | {middle} | {numbers['gb']:.2f} | {over} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=("mnist", "pacs"), default=["mnist", "pacs"])
    parser.add_argument("--small", action="store_true", help="use tiny sizes, to test the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    on_gpu = options.device != "cpu"
    size = SMALL if options.small else replace(Size(), repeats=9, lasting=0.3)
    engine = Engine(device=options.device, compile="on" if on_gpu and not options.small else "off")
    precision = "bf16" if on_gpu else "fp32"
    found: dict[str, Any] = {
        **facts("centre", engine.torch_device(), arguments),
        "precision": precision,
        "workloads": {},
    }
    for workload in options.only:
        found["workloads"][workload] = measure(workload, engine, size, precision)
        print("\n".join([f"\n{workload}, {found['device']}, {precision}\n", *table(found["workloads"][workload])]))
        clock.free_memory(engine.torch_device())
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
