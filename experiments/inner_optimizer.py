"""What POGM's inner optimizer costs and what its matching gains, on RotatedDigits.

python experiments/inner_optimizer.py [folder]

Accuracy on the unseen domain after the last of 301 minibatches, mean ± standard error over three seeds. The rows
marked κ = 0 do not match at all: they average what the domains' copies learned.
"""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from pogm import ERM, POGM
from pogm.algorithms import Algorithm
from pogm.benchmark.executors import run_all
from pogm.benchmark.progress import tracked
from pogm.benchmark.records import accuracy, read_runs
from pogm.benchmark.run import Settings
from pogm.benchmark.tables import mean_and_error
from pogm.benchmark.trial import Trial
from pogm.datasets import dataset_class
from pogm.datasets.splits import seed_hash

DATASET = "RotatedDigits"
HELD_OUT = (0, 2, 5)  # the angles 0, 30 and 75
METHODS: dict[str, tuple[Algorithm, float]] = {
    "ERM, Adam, lr 0.005": (ERM(), 5e-3),
    "POGM, Adam, lr 0.005, α = 0.5, κ = 0": (POGM(kappa=0.0), 5e-3),
    "POGM, Adam, lr 0.005, α = 0.5, κ = 0.5": (POGM(kappa=0.5), 5e-3),
    "POGM, SGD, lr 0.3, α = 1, κ = 0": (POGM(kappa=0.0, meta_lr=1.0, inner_optimizer="sgd"), 0.3),
    "POGM, SGD, lr 0.3, α = 1, κ = 0.5": (POGM(kappa=0.5, meta_lr=1.0, inner_optimizer="sgd"), 0.3),
}


def plan() -> dict[str, tuple[str, Trial]]:
    """The trials by id, each with the row it belongs to. Every method sees the same data and minibatches."""
    trials = {}
    for name, (algorithm, lr) in METHODS.items():
        for held_out in HELD_OUT:
            for seed in range(3):
                number = seed_hash(DATASET, held_out, seed)
                trial = Trial(
                    dataset=dataset_class(DATASET)(),
                    algorithm=algorithm,
                    test_domains=(held_out,),
                    training=replace(dataset_class(DATASET).training, lr=lr),
                    steps=301,
                    evaluate_every=300,
                    seed=number,
                    data_seed=number,
                    trial_seed=seed,
                )
                trials[trial.id] = name, trial
    return trials


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/inner_optimizer")
    trials = plan()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = run_all([trial for _, trial in trials.values()], folder, Settings())
    for outcome in tracked(outcomes, len(trials), "runs"):
        if outcome.error is not None:
            sys.exit(f"{outcome.trial.label}: {outcome.error}")
    cells = defaultdict(list)
    for run in read_runs(folder):
        if run.id in trials:
            (held_out,) = run.test_domains
            cells[trials[run.id][0], held_out].append(accuracy(run.records[-1], "in", held_out))
    names = [dataset_class(DATASET).domains[held_out] for held_out in HELD_OUT]
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for name in METHODS:
        print(f"| {name} | " + " | ".join(str(mean_and_error(cells[name, held_out])) for held_out in HELD_OUT) + " |")


if __name__ == "__main__":
    main()
