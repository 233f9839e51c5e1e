"""Accuracies of an experiment's runs as tables, and beside the paper's where dataset and method coincide."""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.comparison import Comparison, compare
from pogm.benchmark.results.published import Source, published
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.tables import Table, averages_table, dataset_table

BOTH = (TEST_DOMAIN, TRAINING_DOMAIN)  # the paper's first
NOTHING_TO_CHOOSE = (
    "There was one configuration, and so nothing to choose: these are the accuracies after its last step."
)
NAMED = 5  # failed runs beneath a table, at most


def averages(runs: Sequence[Run], selections: Sequence[Selection] = BOTH, notes: Sequence[str] = ()) -> list[Table]:
    """Rows against datasets."""
    alone = [NOTHING_TO_CHOOSE] if len({run.hparams_seed for run in runs}) == 1 else []
    tables = [averages_table(runs, selection) for selection in selections if runs]
    return [_noted(table, runs, [*(alone if table.selection is TEST_DOMAIN else []), *notes]) for table in tables]


def details(runs: Sequence[Run], selections: Sequence[Selection] = BOTH) -> list[Table]:
    """Rows against the domains of each dataset."""
    datasets = dict.fromkeys(run.dataset for run in runs)
    here = {name: [run for run in runs if run.dataset == name] for name in datasets}
    return [
        _noted(dataset_table(here[name], name, selection), here[name]) for name in datasets for selection in selections
    ]


def beside_paper(runs: Sequence[Run], selections: Sequence[Selection] = BOTH) -> list[Comparison]:
    """Ours and the paper's, where both have a number; rows go by their labels alone."""
    return beside(runs, published("paper"), selections)


def beside(runs: Sequence[Run], source: Source, selections: Sequence[Selection] = BOTH) -> list[Comparison]:
    """Our numbers and those of a publication, where both have one; rows are matched by label only."""
    return compare(runs, replace(source, settings=()), selections)


def _noted(table: Table, runs: Sequence[Run], notes: Sequence[str] = ()) -> Table:
    return replace(table, footnotes=(*table.footnotes, *notes, *failures(runs)))


def failures(runs: Sequence[Run]) -> list[str]:
    """Which runs failed, and why."""
    failed = [run for run in runs if run.failure is not None]
    notes = []
    for run in failed[:NAMED]:
        why = run.failure.strip().splitlines()[-1] if run.failure and run.failure.strip() else "no reason given"
        notes.append(f"Failed: {run.label} on {run.dataset}, held out {run.held_out}, trial {run.trial_seed}: {why}")
    return [*notes, f"And {len(failed) - NAMED} more that failed."] if len(failed) > NAMED else notes
