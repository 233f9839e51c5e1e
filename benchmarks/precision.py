"""Whether bf16 and TF32 move results: the same trials in each precision, accuracies side by side.

python benchmarks/precision.py --data FOLDER [--device cuda] [--steps 2001] [--seeds 4] [--out results.json]

ColoredMNIST, POGM and ERM, each domain but the middle one held out in turn, several seeds. A seed draws the same
weights and minibatches whatever the precision, so differences are taken pair by pair: their mean, with its standard
error, against the spread between seeds, which is the noise that any table of this kind has.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pogm.benchmark.options import trial_of
from pogm.benchmark.spread import mean_of
from pogm.engine.session import Engine, Session
from pogm.engine.train import train

HELD_OUT = ("0", "2")


def accuracies(options: argparse.Namespace, algorithm: str, precision: str) -> list[float]:
    """Of every held-out domain and seed: the accuracy on its images after the last step, in percent."""
    common = {"steps": options.steps, "evaluate_every": options.steps, "precision": precision}
    trials = [
        trial_of(options.dataset, algorithm, [held], seed=seed, **common)
        for held in HELD_OUT
        for seed in range(options.seeds)
    ]
    engine = Engine(options.device, compile=options.compile)
    session = Session([trial.task(options.data) for trial in trials], engine)
    *_, last = train(session, trials[0].schedule)
    return [100 * found[2 * trial.test_domains[0]] for trial, found in zip(trials, last.accuracies, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", default="ColoredMNIST")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="on")
    parser.add_argument("--steps", type=int, default=2001)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--algorithms", nargs="+", default=["POGM", "ERM"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print("| method | precision | accuracy | spread between seeds | minus the first, in pairs |\n|---|---|---|---|---|")
    for algorithm in options.algorithms:
        first: list[float] = []
        for precision in options.precisions:
            found = accuracies(options, algorithm, precision)
            results[f"{algorithm} {precision}"] = found
            first = first or found
            differences = mean_of([a - b for a, b in zip(found, first, strict=True)])
            spread = statistics.mean(
                statistics.stdev(found[place : place + options.seeds]) for place in range(0, len(found), options.seeds)
            )
            change = "–" if found is first else f"{differences.value:+.2f} ± {differences.error:.2f}"
            print(f"| {algorithm} | {precision} | {statistics.mean(found):.2f} | {spread:.2f} | {change} |", flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
