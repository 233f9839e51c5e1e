"""Tables of accuracies and differences to ERM by a level, such as the number of training domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.paired import UNIT, paired_difference
from pogm.benchmark.results.record_file import accuracy
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Table, estimate
from pogm.benchmark.results.table import Row as TableRow
from pogm.experiments.base import ERM
from pogm.experiments.results import gain_column


@dataclass(frozen=True)
class Levels:
    """Levels of the runs of a table."""

    of: Callable[[Run], int]  # level of a run
    name: str  # of the levels in a CSV file
    title: str  # end of the title of the table
    heading: Callable[[str], str]  # title of the column of a level
    pair: Callable[[Run], int]  # runs with the same level, seed and value of this are compared
    text: Callable[[int], str] = str  # name of a level


def level_table(runs: Sequence[Run], levels: Levels) -> Table:
    """Return accuracies on unseen domains and differences to ERM, by level.

    The accuracy of a run is its mean over all unseen domains, at the step with the best validation accuracy on the
    training domains.

    Args:
        runs: Runs on one dataset, labelled by their rows.
        levels: Their levels.
    """
    chosen = {}  # by level, label, pair and seed
    for run in runs:
        if run.done and run.best_record is not None:
            _, record = run.best_record
            unseen = fmean(accuracy(record, "in", domain) for domain in run.test_domains)
            chosen[levels.text(levels.of(run)), run.label, levels.pair(run), run.trial_seed] = unseen
    found = [levels.text(level) for level in sorted({levels.of(run) for run in runs})]
    rows = [
        TableRow(tuple(cell for level in found for cell in _cells(chosen, level, label)), label)
        for label in labels_of(runs)
    ]
    columns = [
        column
        for level in found
        for ids in ({"dataset": runs[0].dataset, levels.name: level},)
        for column in (
            Column(f"accuracy_{level}", levels.heading(level), unit="%", ids=ids | {"value": "accuracy"}),
            gain_column(f"difference_{level}", "difference to ERM", ids=ids | {"value": "difference"}),
        )
    ]
    return Table(
        title=f"{runs[0].dataset}: accuracy on unseen domains by {levels.title}",
        columns=tuple(columns),
        rows=tuple(rows),
        selection=TRAINING_DOMAIN,
        footnotes=(UNIT,),
        row_key="algorithm",
        csv_keys=("dataset", "algorithm", "selection", levels.name, "value"),
    )


def level_tables(runs: Sequence[Run], table: Callable[[Sequence[Run]], Table]) -> list[Table]:
    """Return a table for each dataset."""
    return [table([run for run in runs if run.dataset == name]) for name in dict.fromkeys(run.dataset for run in runs)]


def _cells(chosen: dict[tuple[str, str, int, int], float], level: str, label: str) -> tuple[Estimate, Estimate]:
    """Return the mean accuracy of a row and its difference to ERM, at one level."""
    by_seed: dict[int, list[float]] = {}
    for (name, row, _, seed), value in chosen.items():
        if (name, row) == (level, label):
            by_seed.setdefault(seed, []).append(100 * value)
    difference = paired_difference(chosen, [level], label, ERM.name) if label != ERM.name else Estimate()
    return estimate(map(fmean, by_seed.values())), difference
