"""The best methods of the evidence against ERM, with a random search of hyperparameters.

Every row has the same number of configurations: the defaults, then DomainBed's random draws. Settings that all methods
have, such as the learning rate, are drawn alike for all rows, and all rows have the same data, initial weights and
seeds, so differences to ERM are paired by held-out domain and seed. Training-domain validation chooses configuration
and step. The rows are the eight best methods of the evidence on the dataset, which were chosen with other seeds; they
are listed in results/PROTOCOL.md, and a dataset without a list has no rows.
"""

from dataclasses import replace
from itertools import product

from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.results import paired_tables
from pogm.experiments.trials import paired_seed, search_of

BY_ROW = True
CONFIGURATIONS = 10  # the first one is the defaults
FIRST_SEED = 10  # the evidence, which chose the methods, has the seeds 0 to 9
SEEDS = 10
BEST = {  # the eight best methods of the evidence by their mean difference to ERM, without control rows
    "HeartDisease": ("MTL", "CORAL", "EQRM", "SAM", "Fishr", "CondCAD", "SD", "POGM"),
}


def plan(scale: Scale) -> Plan:
    """Return the trials of every row on the datasets that have a list of best methods."""
    found: dict[Row, list[Trial]] = {}
    seeds = scale.trials if scale.was_given("--trials") else SEEDS
    for data in (scale.dataset(name) for name in scale.datasets if name in BEST):
        for row in filter(scale.selects, [ERM, *map(Row, (*BEST[data.title], *scale.others))]):
            search = search_of(scale, row, data, CONFIGURATIONS)
            cells = product(range(FIRST_SEED, FIRST_SEED + seeds), range(CONFIGURATIONS), range(len(data.domains)))
            found.setdefault(row, []).extend(_paired_trial(search, *cell) for cell in cells)
    return found


def _paired_trial(search: Sweep, trial_seed: int, configuration: int, held_out: int) -> Trial:
    """Return a trial of a search of one method, with the seed that all methods share."""
    (algorithm,), (data,) = search.algorithms, search.datasets
    seed = paired_seed(data, held_out, trial_seed)
    return replace(search.trial_at(data, algorithm, [held_out], configuration, trial_seed), seed=seed, data_seed=seed)


exhibits = paired_tables
