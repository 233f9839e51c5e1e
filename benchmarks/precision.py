"""Effect of bf16 and TF32 on results: accuracies of the same trials in each precision.

python benchmarks/precision.py --data FOLDER [--dataset RotatedMNIST] [--device cuda] [--steps 2001] [--out FILE.json]
python benchmarks/precision.py --dataset RotatedDigits --device cpu --compile off --precisions fp32 bf16

The trials are POGM and ERM with several seeds; the first or the third domain is held out. Trials with the same seed
have the same weights and minibatches in every precision, so their differences are paired. The script prints the mean
difference with its standard error, and the standard deviation over seeds, which is the noise of such a table.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rows.run import facts

from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.results.statistics import mean_of
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train

HELD_OUT = ("0", "2")


def accuracies(options: argparse.Namespace, algorithm: str, precision: str) -> list[float]:
    """Return the accuracy on the held-out domain after the last step, in percent, for every domain and seed."""
    common = {"steps": options.steps, "evaluate_every": options.steps, "precision": precision}
    trials = [
        build_trial(options.dataset, algorithm, [held], seed=seed, **common)
        for held in HELD_OUT
        for seed in range(options.seeds)
    ]
    engine = Engine(options.device, compile=options.compile)
    session = Session([trial.task(options.data) for trial in trials], engine)
    *_, last = train(session, trials[0].schedule)
    return [100 * found[2 * trial.test_domains[0]] for trial, found in zip(trials, last.accuracies, strict=True)]


def section(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| method | precision | accuracy | standard deviation over seeds | paired difference to the first precision |"
    yield "|---|---|---|---|---|"
    for algorithm, precisions in found["accuracies"].items():
        first = next(iter(precisions.values()))
        for precision, values in precisions.items():
            differences = mean_of([one - other for one, other in zip(values, first, strict=True)])
            error = "" if differences.error is None else f" ± {differences.error:.2f}"
            change = "–" if values is first else f"{differences.value:+.2f}{error}"
            groups = [values[start : start + found["seeds"]] for start in range(0, len(values), found["seeds"])]
            spread = statistics.mean(map(statistics.stdev, groups))
            yield f"| {algorithm} | {precision} | {statistics.mean(values):.2f} | {spread:.2f} | {change} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", default="RotatedMNIST")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="on")
    parser.add_argument("--steps", type=int, default=2001)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--algorithms", nargs="+", default=["POGM", "ERM"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = facts("precision", torch.device(options.device), sys.argv[1:])
    found |= {name: getattr(options, name) for name in ("dataset", "steps", "seeds")} | {"accuracies": {}}
    for algorithm in options.algorithms:
        for precision in options.precisions:
            values = accuracies(options, algorithm, precision)
            found["accuracies"].setdefault(algorithm, {})[precision] = values
            print(algorithm, precision, f"{statistics.mean(values):.2f}", flush=True)
            if options.out:  # results so far
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(section(found)))


if __name__ == "__main__":
    main()
