"""Fewer training domains: differences of some methods to ERM by the number of training domains, paired.

A run with m training domains trains on m neighbours in the order of the dataset, in which the first domain follows the
last one, and is tested on all other domains. So every domain is a training domain equally often. All methods have the
same data, first weights and minibatches of each training domain. With fewer domains they also see fewer samples.
"""

from collections.abc import Iterator, Sequence

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.centre import ERM_CENTRE
from pogm.experiments.levels import Levels, level_table, level_tables
from pogm.experiments.paired import paired_scale
from pogm.experiments.trials import default_trial

BY_ROW = True
LEAST = 2  # training domains: with one, there is nothing to match
ROWS = (ERM, Row("POGM"), ERM_CENTRE, *map(Row, ("Fish", "GroupDRO", "CORAL")), Row("ERM", ("SWAD",)))


def plan(scale: Scale) -> Plan:
    """Return the trials of every row. Those with one held-out domain are trials of the evidence."""
    longer = paired_scale(scale)
    return {
        row: [
            trial
            for seed in range(longer.seeds)
            for dataset in longer.datasets
            for trial in _trials(longer, dataset, row, seed)
        ]
        for row in ROWS
        if scale.selects(row)
    }


def _trials(scale: Scale, dataset: str, row: Row, seed: int) -> Iterator[Trial]:
    count = len(scale.dataset(dataset).domains)
    for trained in range(LEAST, count):
        for last in range(count):  # the last domain before the training domains
            tested = sorted((last - number) % count for number in range(count - trained))
            yield default_trial(scale, dataset, row, last, seed, test_domains=tuple(tested))


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Table]:
    """Return a table for each dataset."""
    return level_tables(runs, domain_count_table)


def domain_count_table(runs: Sequence[Run]) -> Table:
    """Return accuracies on unseen domains and differences to ERM, by the number of training domains."""
    return level_table(runs, LEVELS)


def _first(run: Run) -> int:
    """Return the index of the first training domain: that whose neighbour before it is unseen."""
    return next(domain for domain in run.train_domains if (domain - 1) % len(run.domains) in run.test_domains)


LEVELS = Levels(
    of=lambda run: len(run.train_domains),
    name="training_domains",
    title="the number of training domains",
    heading=lambda count: f"{count} domains",
    pair=_first,
)
