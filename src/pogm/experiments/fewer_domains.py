"""Fewer training domains: differences of some methods to ERM by the number of training domains, paired.

A run with m training domains trains on m neighbours in the order of the dataset, in which the first domain follows the
last one, and is tested on all other domains. So every domain is a training domain equally often. All methods have the
same data, first weights and minibatches of each training domain. With fewer domains they also see fewer samples.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.paired import UNIT, paired_difference
from pogm.benchmark.results.records import Run, accuracy
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Table, estimate
from pogm.benchmark.results.table import Row as TableRow
from pogm.experiments.base import ERM, Exhibit, Plan, Row, Scale
from pogm.experiments.centre import ERM_CENTRE
from pogm.experiments.paired import paired_scale
from pogm.experiments.results import gain_column
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


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return a table for each dataset."""
    datasets = dict.fromkeys(run.dataset for run in runs)
    return [domain_count_table([run for run in runs if run.dataset == name]) for name in datasets]


def domain_count_table(runs: Sequence[Run]) -> Table:
    """Return accuracies on unseen domains and differences to ERM, by the number of training domains.

    The accuracy of a run is its mean over all unseen domains, at the step with the best validation accuracy on the
    training domains.

    Args:
        runs: Runs on one dataset, labelled by their rows.
    """
    chosen = {}  # by number of training domains, label, first training domain and seed
    for run in runs:
        if run.done and run.best_record is not None:
            _, record = run.best_record
            unseen = fmean(accuracy(record, "in", domain) for domain in run.test_domains)
            chosen[str(len(run.train_domains)), run.label, _first(run), run.trial_seed] = unseen
    counts = sorted({str(len(run.train_domains)) for run in runs}, key=int)
    rows = [
        TableRow(tuple(cell for count in counts for cell in _cells(chosen, count, label)), label)
        for label in labels_of(runs)
    ]
    columns = [
        column
        for count in counts
        for ids in ({"dataset": runs[0].dataset, "training_domains": count},)
        for column in (
            Column(f"accuracy_{count}", f"{count} domains", unit="%", ids=ids | {"value": "accuracy"}),
            gain_column(f"difference_{count}", "difference to ERM", ids=ids | {"value": "difference"}),
        )
    ]
    return Table(
        title=f"{runs[0].dataset}: accuracy on unseen domains by the number of training domains",
        columns=tuple(columns),
        rows=tuple(rows),
        selection=TRAINING_DOMAIN,
        footnotes=(UNIT,),
        row_key="algorithm",
        csv_keys=("dataset", "algorithm", "selection", "training_domains", "value"),
    )


def _first(run: Run) -> int:
    """Return the index of the first training domain: that whose neighbour before it is unseen."""
    return next(domain for domain in run.train_domains if (domain - 1) % len(run.domains) in run.test_domains)


def _cells(chosen: dict[tuple[str, str, int, int], float], count: str, label: str) -> tuple[Estimate, Estimate]:
    """Return the mean accuracy of a row and its difference to ERM, with one number of training domains."""
    by_seed: dict[int, list[float]] = {}
    for (number, name, _, seed), value in chosen.items():
        if (number, name) == (count, label):
            by_seed.setdefault(seed, []).append(100 * value)
    difference = paired_difference(chosen, [count], label, ERM.name) if label != ERM.name else Estimate()
    return estimate(map(fmean, by_seed.values())), difference
