"""Every method on the embedded datasets: to see that all of them work and what they do there, not to rank them.

python experiments/all_methods.py [--runs runs/all_methods] [--seeds 3] [--out docs/all_methods.md]

Default hyperparameters, the demo's length, every domain held out once. Schedules that would begin later than these runs
end (at 500 to 2,500 steps) begin at step 50. Modifiers run on ERM. What needs feature maps, or makes them (ARM), runs
with the MNIST CNN and --maps, in a table of its own, which takes half an hour. The same command goes on where it
stopped.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pogm.algorithms import all_algorithms
from pogm.algorithms.base import Algorithm
from pogm.benchmark.executors import run_all
from pogm.benchmark.progress import tracked
from pogm.benchmark.records import read_runs
from pogm.benchmark.run import Settings
from pogm.benchmark.selection import TRAINING_DOMAIN
from pogm.benchmark.tables import Table, dataset_table
from pogm.benchmark.trial import Trial
from pogm.core.hyper import fields
from pogm.datasets import dataset_class
from pogm.datasets.splits import seed_hash
from pogm.modifiers import Modifier, all_modifiers

DATASETS = ("RotatedDigits", "ColoredDigits")
ON_MAPS = ("ARM", "MixStyle", "ITTA")
SOON = 50  # minibatches
OTHERS = {"Fishr": {"penalty": 100.0}}  # as in the demo
Recipe = tuple[Algorithm, tuple[Modifier, ...]]


def early(method: type[Any]) -> Any:
    """A method with schedules that fit into a short run."""
    waits = {f.name: SOON for f in fields(method) if f.name.endswith("_iters") and f.default > SOON}
    return method(**waits | OTHERS.get(method.__name__, {}))


def recipes(on_maps: bool) -> list[Recipe]:
    """Methods for networks without feature maps, or with; ERM is among both."""
    methods = [
        early(found) for name, found in all_algorithms().items() if name == "ERM" or (name in ON_MAPS) == on_maps
    ]
    modifiers = [early(found) for name, found in all_modifiers().items() if (name in ON_MAPS) == on_maps]
    return [(method, ()) for method in methods] + [(all_algorithms()["ERM"](), (one,)) for one in modifiers]


def plan(methods: Iterable[Recipe], seeds: int, network: str) -> list[Trial]:
    """All trials. Methods share data, first weights and minibatches."""
    trials = []
    for dataset in (dataset_class(name)() for name in DATASETS):
        training = replace(dataset.training, network=network)
        for algorithm, modifiers in methods:
            for held_out in range(len(dataset.domains)):
                for seed in range(seeds):
                    number = seed_hash(dataset.title, held_out, seed)
                    trial = Trial(
                        dataset=dataset,
                        algorithm=algorithm,
                        modifiers=modifiers,
                        test_domains=(held_out,),
                        training=training,
                        steps=dataset.steps,
                        evaluate_every=dataset.evaluate_every,
                        seed=number,
                        data_seed=number,
                        trial_seed=seed,
                    )
                    trials.append(trial)
    return trials


def tables(trials: list[Trial], folder: Path) -> list[Table]:
    """Run what is left to run, and the tables of it all."""
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in tracked(run_all(trials, folder, Settings()), len(trials), folder.name):
        if outcome.error is not None:
            print(f"{outcome.trial.label} on {outcome.trial.dataset.title}: {outcome.error}", file=sys.stderr)
    runs = read_runs(folder)
    return [dataset_table(runs, name, TRAINING_DOMAIN) for name in DATASETS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/all_methods"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--maps", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for network, on_maps in (("mlp", False), ("mnist_cnn", True))[: 1 + options.maps]:
        trials = plan(recipes(on_maps), options.seeds, network)
        found += [(network, table) for table in tables(trials, options.runs / network)]
    text = "\n".join(f"{table.text()}\n(network: {network})\n" for network, table in found)
    print(text)
    if options.out:
        intro = __doc__[__doc__.index("Default") :].strip()
        page = [
            "# Every method on the embedded data",
            f"    python {' '.join(sys.argv)}",
            intro,
            f"```\n{text.rstrip()}\n```",
        ]
        options.out.write_text("\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
