"""The main job of a newcomer: four methods, two small datasets, every domain held out once, three seeds."""

from pogm.algorithms import algorithm_class
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets import dataset_class
from pogm.data.datasets.splits import seed_hash
from pogm.diagnostics import Probe

DATASETS = ("RotatedDigits", "ColoredDigits")
ALGORITHMS = {
    "ERM": {},
    "Fish": {},
    "Fishr": {"penalty": 100.0, "penalty_anneal_iters": 50},  # its default waits for longer than these runs last
    "POGM": {},
}
SEEDS = 3


def plan(seeds: int = SEEDS) -> list[Trial]:
    """The trials, the long ones first, so that no core is idle at the end.

    Algorithms are compared on the same data, first weights and minibatches: the seed does not depend on them.
    """
    trials = []
    for name in DATASETS:
        dataset = dataset_class(name)()
        for algorithm, values in sorted(ALGORITHMS.items(), reverse=True):
            for held_out in range(len(dataset.domains)):
                for seed in range(seeds):
                    number = seed_hash(name, held_out, seed)
                    trial = Trial(
                        dataset=dataset,
                        algorithm=algorithm_class(algorithm)(**values),
                        test_domains=(held_out,),
                        training=dataset.training,
                        steps=dataset.steps,
                        evaluate_every=dataset.evaluate_every,
                        seed=number,
                        data_seed=number,
                        trial_seed=seed,
                        probe=Probe(every=1),  # of every tenth round, angles look smaller than they are
                    )
                    trials.append(trial)
    return trials
