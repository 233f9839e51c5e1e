"""Accuracy tables of the runs of an experiment, and comparisons with published results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.comparison import Comparison, compare
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.published import Source, find_publication
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Column, Table
from pogm.experiments.base import ERM, Exhibit, Scale

BOTH = (TEST_DOMAIN, TRAINING_DOMAIN)  # the paper uses the first
NOTHING_TO_CHOOSE = "There is one configuration, so nothing is selected: these are the accuracies after its last step."
NOTHING = "–"  # text of an empty cell
POINTS = "percentage points"
NAMED = 5  # failed runs that are named beneath a table; the others are counted


def averages(runs: Sequence[Run], selections: Sequence[Selection] = BOTH, notes: Sequence[str] = ()) -> list[Table]:
    """Return tables of rows against datasets, one for each selection.

    Args:
        runs: Runs, labelled by their rows.
        selections: Model selections.
        notes: Further footnotes.
    """
    single = [NOTHING_TO_CHOOSE] if len({run.hparams_seed for run in runs}) == 1 else []
    tables = [averages_table(runs, selection) for selection in selections if runs]
    return [_with_notes(table, runs, [*(single if table.selection is TEST_DOMAIN else []), *notes]) for table in tables]


def details(runs: Sequence[Run], selections: Sequence[Selection] = BOTH) -> list[Table]:
    """Return tables of rows against domains, one for each dataset and selection."""
    datasets = dict.fromkeys(run.dataset for run in runs)
    by_dataset = {name: [run for run in runs if run.dataset == name] for name in datasets}
    return [
        _with_notes(dataset_table(found, name, selection), found)
        for name, found in by_dataset.items()
        for selection in selections
    ]


def paired_tables(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return accuracies, paired differences to ERM, and the results of every domain: `exhibits` of an experiment."""
    gains = [differences(runs, ERM.name, selection) for selection in BOTH if runs]
    return [*averages(runs), *gains, *details(runs)]


def gain_column(key: str, title: str = "", **more: Any) -> Column:
    """Return a column of paired differences; ``more`` are other fields of `Column`."""
    return Column(key, title, unit=POINTS, digits="+.2f", error_digits=".2f", missing=NOTHING, **more)


def compare_with_paper(runs: Sequence[Run]) -> list[Comparison]:
    """Compare runs with the paper; rows are matched by label only."""
    return compare_by_label(runs, find_publication("paper"))


def compare_by_label(runs: Sequence[Run], source: Source, selections: Sequence[Selection] = BOTH) -> list[Comparison]:
    """Compare runs with a publication; rows are matched by label only."""
    return compare(runs, replace(source, settings=()), selections)


def _with_notes(table: Table, runs: Sequence[Run], notes: Sequence[str] = ()) -> Table:
    return replace(table, footnotes=(*table.footnotes, *notes, *failures(runs)))


def failures(runs: Sequence[Run]) -> list[str]:
    """Return footnotes that name the failed runs, with the last line of each error."""
    failed = [run for run in runs if run.failure is not None]
    notes = []
    for run in failed[:NAMED]:
        why = run.failure.strip().splitlines()[-1] if run.failure and run.failure.strip() else "no reason given"
        notes.append(f"Failed: {run.label} on {run.dataset}, held out {run.held_out}, trial {run.trial_seed}: {why}")
    return [*notes, f"{len(failed) - NAMED} more runs failed."] if len(failed) > NAMED else notes
