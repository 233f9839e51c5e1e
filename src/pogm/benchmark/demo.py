"""The plan of ``pogm demo``: four methods, two small datasets, every domain held out once, three seeds."""

from pogm.algorithms import algorithm_class
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import seed_hash
from pogm.diagnostics import Probe

DATASETS = ("RotatedDigits", "ColoredDigits")
ALGORITHMS = {
    "ERM": {},
    "Fish": {},
    "Fishr": {"penalty": 100.0, "penalty_anneal_iters": 50},  # the default starts after the end of these short runs
    "POGM": {},
}
SEEDS = 3


def plan(seeds: int = SEEDS) -> list[Trial]:
    """Return the trials, long ones first, so that no core is idle at the end.

    The seed does not depend on the algorithm: all algorithms have the same data, initial weights and minibatches.
    """
    trials = []
    for name in DATASETS:
        dataset = dataset_class(name)()
        for algorithm, values in sorted(ALGORITHMS.items(), reverse=True):
            for held_out in range(len(dataset.domains)):
                for seed in range(seeds):
                    method = algorithm_class(algorithm)(**values)
                    parts = {"dataset": dataset, "algorithm": method, "training": dataset.training}
                    trial = Trial.build(
                        parts,
                        (held_out,),
                        seed=seed_hash(name, held_out, seed),
                        trial_seed=seed,
                        probe=Probe(every=1),  # measuring fewer rounds would make the cosines look smaller
                    )
                    trials.append(trial)
    return trials
