"""Fewer training samples: differences of some methods to ERM by the number of samples per training domain, paired.

Every domain is held out. A run with n samples trains on n samples of each training domain at most, of which a fifth are
for validation, and is tested on all samples of the held-out domain. The samples of a larger n contain those of a
smaller one. All methods have the same samples, first weights and minibatches; a run has the same number of minibatches
for every n.
"""

import sys
from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.experiments.base import Plan, Scale
from pogm.experiments.fewer_domains import ROWS
from pogm.experiments.levels import Levels, level_table, level_tables
from pogm.experiments.paired import paired_scale
from pogm.experiments.trials import default_trial

BY_ROW = True
ALL = sys.maxsize  # level of a run with all samples
SAMPLES = {  # of each training domain, by dataset, beside all of them
    "HeartDisease": (20, 50, 100),
    "SpokenDigits": (50, 100, 200),
    "AmazonReviews": (100, 300, 1000),
}
OTHERS = (30, 100, 300)  # on other datasets


def plan(scale: Scale) -> Plan:
    """Return the trials of every row. Those with all samples are trials of the evidence."""
    longer = paired_scale(scale)
    return {
        row: [
            default_trial(longer, dataset, row, held_out, seed, samples=count)
            for seed in range(longer.seeds)
            for dataset in longer.datasets
            for count in (*SAMPLES.get(dataset, OTHERS), None)
            for held_out in range(len(longer.dataset(dataset).domains))
        ]
        for row in ROWS
        if scale.selects(row)
    }


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Table]:
    """Return a table for each dataset."""
    return level_tables(runs, sample_count_table)


def sample_count_table(runs: Sequence[Run]) -> Table:
    """Return accuracies on unseen domains and differences to ERM, by the number of samples per training domain."""
    return level_table(runs, LEVELS)


LEVELS = Levels(
    of=lambda run: int(run.trial.get("samples", ALL)),
    name="samples",
    title="the number of samples per training domain",
    heading=lambda count: f"{count} samples",
    pair=lambda run: min(run.test_domains),
    text=lambda count: "all" if count == ALL else str(count),
)
