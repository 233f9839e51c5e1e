"""Accuracy tables: mean ± standard error over trials, in percent, under one model selection."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from pogm._system.errors import UsageError
from pogm.benchmark.results.adaptation import adaptation_notes
from pogm.benchmark.results.combined import combination_notes, member_selection_notes
from pogm.benchmark.results.model_metrics import count_test_images
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import Choice, Selection
from pogm.benchmark.results.table import INCOMPLETE, Cell, Column, Estimate, Row, Table, estimate

R2 = "100 R²"  # unit of the score of a regression
AVERAGE = "Avg"  # name of the column with averages
LISTED = 6  # rows that a footnote names
ALL_DATASETS = "Averages"  # in CSV, the dataset of an average over all datasets
CSV_KEYS = ("dataset", "algorithm", "selection", "domain")
REPORTED = {"failed", "unfinished", "diverged", "ambiguous: settings differ", "no records"}  # counted in a footnote


def accuracy_column(title: str, dataset: str, domain: str, images: int | None = None, unit: str = "%") -> Column:
    """Return the column of the accuracy on a domain, or on a dataset if ``domain`` is `AVERAGE`."""
    ids = {"dataset": dataset, "domain": domain}
    return Column(title, unit=unit, best="highest", per_trial=True, ids=ids, test_images=images)


def average_column(dataset: str, unit: str = "%") -> Column:
    """Return the last column of an accuracy table: the mean of the other cells of a row."""
    return Column(AVERAGE, unit=unit, best="highest", ids={"dataset": dataset, "domain": AVERAGE})


def score_unit(runs: Iterable[Run]) -> str:
    """Return the unit of the numbers of a table: "%" for accuracies, and `R2` if a run is a regression."""
    return R2 if any(run.task == "regression" for run in runs) else "%"


def dataset_table(
    runs: Iterable[Run], dataset: str, selection: Selection, choices: Sequence[Choice] | None = None
) -> Table:
    """Return the accuracies on one dataset: algorithms against held-out domains.

    Args:
        runs: The runs.
        dataset: Name of the dataset.
        selection: Model selection.
        choices: What it chooses from the runs of the dataset, if that is known.
    """
    runs = [run for run in runs if run.dataset == dataset]
    domains, choices = domains_of(runs), selection(runs) if choices is None else choices
    seeds = {choice.trial_seed for choice in choices if choice.accuracy is not None}
    by_label = {label: [choice for choice in choices if choice.label == label] for label in labels_of(runs)}
    cells = {
        label: [_domain_cell([c for c in found if c.domain == i], len(seeds)) for i in range(len(domains))]
        for label, found in by_label.items()
    }
    images = count_test_images(runs, choices)
    unit = score_unit(runs)
    columns = [accuracy_column(domain, dataset, domain, images.get(i), unit) for i, domain in enumerate(domains)]
    return _accuracy_table(dataset, selection, columns, cells, average_column(dataset, unit), choices, runs)


def averages_table(runs: Iterable[Run], selection: Selection, choices: Sequence[Choice] | None = None) -> Table:
    """Return the accuracies on all datasets: algorithms against datasets, each cell a mean over held-out domains.

    Args:
        runs: The runs.
        selection: Model selection.
        choices: What it chooses from the runs, if that is known.
    """
    runs = list(runs)
    by_dataset: dict[str, list[Run]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    datasets = tuple(by_dataset)
    domains = {name: len(domains_of(found)) for name, found in by_dataset.items()}
    choices = selection(runs) if choices is None else choices
    images = {
        name: count_test_images(runs, [choice for choice in choices if choice.dataset == name]) for name in datasets
    }
    totals = {name: sum(found.values()) if len(found) == domains[name] else None for name, found in images.items()}
    by_label = {label: [choice for choice in choices if choice.label == label] for label in labels_of(runs)}
    cells = {
        label: [_dataset_cell([c for c in found if c.dataset == name], domains[name]) for name in datasets]
        for label, found in by_label.items()
    }
    units = {name: score_unit(found) for name, found in by_dataset.items()}
    columns = [accuracy_column(name, name, AVERAGE, totals[name], units[name]) for name in datasets]
    last = average_column(ALL_DATASETS, R2 if R2 in units.values() else "%")
    return _accuracy_table("All datasets", selection, columns, cells, last, choices, runs)


def _accuracy_table(
    title: str,
    selection: Selection,
    columns: Sequence[Column],
    cells: dict[str, list[Estimate]],
    last: Column,
    choices: Sequence[Choice],
    runs: Sequence[Run],
) -> Table:
    meanings = combination_notes(runs)
    return Table(
        title=title,
        columns=(*columns, last),
        rows=tuple(Row((*row, average(row)), label, meaning=meanings.get(label, "")) for label, row in cells.items()),
        selection=selection,
        footnotes=(
            *_footnotes([cell for row in cells.values() for cell in row], choices),
            *_search_note([choice for choice in choices if choice.label not in meanings]),
            *_score_note(columns),
            *adaptation_notes(runs),
            *member_selection_notes(runs, selection),
        ),
        row_key="algorithm",
        csv_keys=CSV_KEYS,
    )


def domains_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the names of the domains of one dataset.

    Raises:
        UsageError: If the runs have different domains.
    """
    found = list(dict.fromkeys(run.domains for run in runs))
    if len(found) != 1:
        raise UsageError(
            f"Expected runs that agree on the domains of a dataset; found {found}. Report them one by one."
        )
    return found[0]


def labels_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the labels of runs in their order, each once."""
    return tuple(dict.fromkeys(run.label for run in runs))


def average(cells: Sequence[Cell]) -> Estimate:
    """Return the mean of the means of a row. It has no standard error, and no value if a cell has none."""
    known = [cell for cell in cells if isinstance(cell, Estimate) and cell.mean is not None]
    if len(known) < len(cells):
        return Estimate()
    means = [cell.mean for cell in known if cell.mean is not None]
    return Estimate(fmean(means), n=min(cell.n for cell in known), incomplete=any(cell.incomplete for cell in known))


def _domain_cell(choices: Sequence[Choice], trials: int) -> Estimate:
    found = [100 * choice.accuracy for choice in choices if choice.accuracy is not None]
    return estimate(found, incomplete=len(found) < trials) if found else _missing(choices)


def _dataset_cell(choices: Sequence[Choice], domains: int) -> Estimate:
    by_trial: dict[int, list[float]] = {}
    for choice in choices:
        if choice.accuracy is not None:
            by_trial.setdefault(choice.trial_seed, []).append(choice.accuracy)
    incomplete = any(len(accuracies) < domains for accuracies in by_trial.values())
    means = [100 * fmean(accuracies) for accuracies in by_trial.values()]
    return estimate(means, incomplete=incomplete) if means else _missing(choices)


def _missing(choices: Sequence[Choice]) -> Estimate:
    return Estimate(reason="; ".join(dict.fromkeys(choice.reason for choice in choices)) or "not run")


def _footnotes(cells: Sequence[Estimate], choices: Iterable[Choice]) -> tuple[str, ...]:
    numbers = [cell for cell in cells if cell.mean is not None]
    notes = []
    if numbers:
        notes.append(_trials_note([cell.n for cell in numbers]))
    if any(cell.incomplete for cell in numbers):
        notes.append(f"{INCOMPLETE} Incomplete: a trial or a test domain is missing from this mean.")
    missing = Counter(reason for choice in choices for reason in choice.left_out if reason in REPORTED)
    if missing:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
        notes.append(f"Left out: {counts}.")
    return tuple(notes)


def _search_note(choices: Iterable[Choice]) -> tuple[str, ...]:
    """Name the rows that choose among fewer configurations than others, with their numbers; it favours the others."""
    tried: dict[str, dict[str, set[int]]] = {}  # numbers of configurations, by dataset and label
    for choice in choices:
        if choice.accuracy is not None:
            count = choice.candidates + sum(reason in REPORTED for reason in choice.left_out)
            tried.setdefault(choice.dataset, {}).setdefault(choice.label, set()).add(count)
    fewer: dict[str, set[int]] = {}
    most = 0
    for by_label in tried.values():
        largest = max(map(max, by_label.values()))
        for label, counts in by_label.items():
            if min(counts) < largest:
                fewer.setdefault(label, set()).update(counts - {largest})
                most = max(most, largest)
    if not fewer:
        return ()
    rows = [f"{label} ({_range(counts)})" for label, counts in fewer.items()]
    more = f" and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
    return (f"Unequal search: fewer than {most} configurations in cells of {', '.join(rows[:LISTED])}{more}.",)


def _range(counts: Iterable[int]) -> str:
    low, high = min(counts := list(counts)), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _score_note(columns: Sequence[Column]) -> tuple[str, ...]:
    """Say which columns are not accuracies."""
    names = [column.title or column.key for column in columns if column.unit == R2]
    which = "The numbers" if len(names) == len(columns) else f"The numbers of {', '.join(names)}"
    return (f"{which} are 100 R² of a regression, not accuracies.",) if names else ()


def _trials_note(counts: Sequence[int]) -> str:
    """Say how many trials a mean has, and what ± is."""
    trials = max(counts)
    if trials == 1:
        return "n = 1 trial, so there is no standard error and no best mark."
    unless = ", unless a cell says otherwise" if min(counts) < trials else ""
    single = "; a mean of one trial has none" if min(counts) == 1 else ""
    return f"n = {trials} trials{unless}; ± is the standard error (population deviation / √n){single}."
