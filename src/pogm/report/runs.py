"""The report: all tables and charts of a set of runs in one HTML file."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import UsageError
from pogm.benchmark.results.accuracy_tables import R2, averages_table, dataset_table, domains_of, labels_of
from pogm.benchmark.results.comparison import compare
from pogm.benchmark.results.finding import Finding, find_main
from pogm.benchmark.results.published import Source
from pogm.benchmark.results.ranking import SUMMARIES, rankings
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, TRAINING_DOMAIN, Choice
from pogm.benchmark.results.table import Estimate, Table
from pogm.report.draw import write_svg
from pogm.report.figure import Figure, Panel, Point, Row
from pogm.report.page import (
    Exhibit,
    Fold,
    Part,
    Section,
    listing,
    paragraph,
    render,
    sentence,
    slug,
    without_folders,
    write_page,
)
from pogm.report.selected_models import selected_models
from pogm.report.series import ACCURACY, COSINE, Group, comparable, cosines, curves, score_label, small_charts

CURVES = """
Each chart shows the accuracy on one held-out domain while the algorithms train on the others. Higher is better; if a
line fluctuates, the result depends on the step at which training stops.
"""

COSINES = """
The cosine of the update of the algorithm (h) and the update of one source domain alone (hᵢ): at 1 they have the same
direction, below 0 the update works against that domain. An algorithm that is high in every chart helps all its domains
at once. A line is the mean over all runs that train on the domain.
"""


def write_report(
    runs: Iterable[Run],
    path: Path | str = "report.html",
    *,
    command: str | None = None,
    title: str = "Domain generalization report",
    against: Source | None = None,
) -> Path:
    """Write the report and return its path.

    Args:
        runs: Runs to report.
        path: File to write; for a folder, `report.html` in it.
        command: Command line that made the report.
        title: Title of the page.
        against: Published results to compare with.
    """
    runs = list(runs)
    path = Path(path)
    path = path / "report.html" if path.is_dir() else path
    found = find_main(runs)
    lead: list[Exhibit] = [sentence(found.sentence), *finding_figure(found, labels_of(runs))]
    sections, facts, provenance = sections_of(runs, against), facts_of(runs), {"Runs made with": _made_with(runs)}
    return write_page(path, render(title, sections, command=command, facts=facts, lead=lead, provenance=provenance))


def write_picture(runs: Iterable[Run], path: Path | str) -> Path:
    """Write an SVG file with mean cosine and test accuracy on the dataset of the first run; return its path.

    Args:
        runs: Runs to draw.
        path: File to write.

    Raises:
        UsageError: If there are no runs.
    """
    runs = list(runs)
    if not runs:
        raise UsageError("Expected runs to draw; found none. Pass a folder that contains finished runs.")
    dataset = runs[0].dataset
    groups = comparable(runs, dataset)
    figure = Figure(
        "picture",
        f"{dataset}: cosine of the update with source domains, and accuracy on the unseen domain",
        (
            Panel("Cosine of the update with source domains", (*cosines(groups),), y_label=COSINE),
            Panel("Accuracy on the unseen domain", (*curves(groups),), y_label=score_label(runs, dataset)),
        ),
    )
    return write_svg(figure, path)


def sections_of(runs: Sequence[Run], against: Source | None = None) -> list[Section]:
    """Return the sections of the report. Parts without measurements are left out."""
    if not runs:
        return [Section("Runs", text="There are no runs yet.")]
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    measured = _measured(runs, datasets)
    averages = [averages_table(runs, selection) for selection in SELECTIONS] if len(datasets) > 1 else []
    return [
        *([Section("All datasets", averages_exhibits(averages))] if averages else []),
        *(_dataset(runs, name, measured.by_dataset.get(name, [])) for name in datasets),
        *measured.suits,
        *_compared(runs, against),
        *_unfinished(runs),
        _trials(runs),
    ]


class _Measured(NamedTuple):
    """Figures of the measurements of probes by dataset, and the section that says if POGM suits the data."""

    by_dataset: Mapping[str, list[Figure]]
    suits: list[Section]


def _measured(runs: Sequence[Run], datasets: Sequence[str]) -> _Measured:
    """Return what is shown of measurements. Torch is imported only if there are some."""
    usable = (run for dataset in datasets for _, _, chosen in comparable(runs, dataset) for run in chosen)
    if all(record.get("rounds") is None for run in usable for record in run.records):
        return _Measured({}, [])
    from pogm.report.diagnostics import measurements, rounds_of, suits

    rounds = rounds_of(runs)
    return _Measured({name: measurements(runs, name, rounds) for name in datasets}, suits(runs, rounds))


def facts_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the facts at the top of the page."""
    counts = Counter(run.status for run in runs)
    statuses = ["done", *sorted(counts.keys() - {"done"})]
    return {
        "Runs": " · ".join(f"{counts[status]}\N{NO-BREAK SPACE}{status}" for status in statuses),
        "Datasets": ", ".join(dict.fromkeys(run.dataset for run in runs)),
        "Algorithms": ", ".join(labels_of(runs)),
        "Trial seeds": ", ".join(str(seed) for seed in sorted({run.trial_seed for run in runs})),
    }


def finding_figure(found: Finding, labels: Sequence[str]) -> list[Figure]:
    """Return the figure of the main finding: means of the methods and paired differences to ERM, the best one first.

    Args:
        found: The finding.
        labels: Labels of all algorithms, in the order of their colours.
    """
    if not found.methods:
        return []
    colours = {label: index for index, label in enumerate(labels)}

    def row(number: int, label: str, mean: Estimate, span: tuple[float, float] | None = None) -> Row:
        point = Point(number, math.nan if mean.mean is None else mean.mean, mean.stderr, mean.n)
        return Row(label, (point,), colours.get(label, 0), span)

    means = tuple(row(i, each.label, each.mean) for i, each in enumerate(found.methods))
    unit = ACCURACY if found.unit == "%" else R2
    panels = [Panel("Mean on unseen domains", means, "", f"{unit}; bars: ± one standard error")]
    notes = ["Training-domain validation; a seed's value is the mean over held-out domains and datasets."]
    if found.baseline is not None and any(each.difference for each in found.methods):
        rows = tuple(
            row(i, each.label, each.difference or Estimate(0.0), found.span(each.difference))
            for i, each in enumerate(found.methods)
        )
        subtitle = "points; thin lines: 95 % intervals"
        panels.append(Panel(f"Difference to {found.baseline}, paired", rows, "", subtitle, reference=0.0))
        notes.append(
            f"Intervals are corrected for {found.comparisons} comparison{'s' * (found.comparisons > 1)} (Bonferroni)."
        )
    counts = {each.mean.n for each in found.methods}
    notes.append(f"n = {'–'.join(map(str, sorted({min(counts), max(counts)})))} seed{'s' * (max(counts) > 1)}.")
    return [Figure("main_finding", "", tuple(panels), "", tuple(notes))]


def _made_with(runs: Iterable[Run]) -> str:
    """Return versions and hardware of the runs, with all values if they differ."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.provenance.items():
            if isinstance(value, str | int | float):
                values.setdefault(key, {})[str(value)] = None
    return " · ".join(
        f"{key} {', '.join(found)}" if len(found) <= 3 else f"{key}: {len(found)} different values"
        for key, found in values.items()
    )


def averages_exhibits(tables: Iterable[Table]) -> tuple[Exhibit, ...]:
    """Return tables over all datasets, one for each selection, with ranks. Only the first one is open."""
    exhibits: list[Exhibit] = []
    for table in tables:
        if not table.empty:
            exhibits += [*fold_secondary(table), _ranks(table)]
    return (*exhibits,)


def fold_secondary(table: Table) -> tuple[Exhibit, ...]:
    """Return a table, which is closed unless it has the selection of the main finding."""
    if table.selection is None or table.selection is TRAINING_DOMAIN:
        return (table,)
    return (Fold(table.selection.title, (table,)),)


def _ranks(table: Table) -> Part:
    ranked = rankings(table)
    if len(ranked) < 2 or table.selection is None:
        return listing((), ())
    head = ("Algorithm", *(name.capitalize() for name in SUMMARIES))
    rows = [(found.label, *(f"{value:.2f}" for value in found.summaries().values())) for found in ranked]
    return listing(
        head, rows, f"Mean ranks over {len(ranked[0].ranks)} datasets (lower is better), {table.selection.title}"
    )


def _dataset(runs: Sequence[Run], dataset: str, measured: Sequence[Figure]) -> Section:
    of_dataset = [run for run in runs if run.dataset == dataset]
    exhibits: list[Exhibit] = []
    chosen: list[tuple[str, Choice]] = []
    for selection in SELECTIONS:
        table = dataset_table(runs, dataset, selection)
        if table.empty and selection is LEAVE_ONE_DOMAIN_OUT:
            exhibits.append(paragraph(f"{selection.title} needs runs that hold out two domains; there are none."))
            continue
        exhibits += fold_secondary(table)
        chosen += [(selection.name, choice) for choice in selection(of_dataset)]
    exhibits += [
        *selected_models(runs, dataset),
        _chosen(chosen, domains_of(of_dataset)),
        *fold_figures(figures_of(runs, dataset), 1),
        *fold_figures(measured),
    ]
    return Section(dataset, (*exhibits,))


def fold_figures(figures: Iterable[Figure], opened: int = 0) -> list[Fold]:
    """Return figures behind their titles. The first ones are open on a wide screen."""
    return [Fold(figure.title, (figure,), number < opened) for number, figure in enumerate(figures)]


def figures_of(runs: Sequence[Run], dataset: str, groups: Sequence[Group] | None = None) -> list[Figure]:
    """Return charts of the accuracy on held-out domains and of the cosines with source domains.

    Args:
        runs: The runs.
        dataset: Name of the dataset.
        groups: Runs to average; by default `comparable` ones.
    """
    domains = domains_of(run for run in runs if run.dataset == dataset)
    groups = comparable(runs, dataset) if groups is None else groups
    accuracies = {f"Held out: {name}": curves(groups, i) for i, name in enumerate(domains)}
    measured = {"Mean over source domains": cosines(groups)}
    measured |= {f"Source domain: {name}": cosines(groups, i) for i, name in enumerate(domains)}
    name, label = slug(dataset).replace("-", "_"), score_label(runs, dataset)
    title = f"{'Accuracy' if label == ACCURACY else 'R²'} on the unseen domain"
    return [
        *small_charts(f"{name}_accuracy", title, accuracies, label, CURVES, 100.0),
        *small_charts(f"{name}_cosine", "Cosine of the update with its source domains", measured, COSINE, COSINES, 1.0),
    ]


def _compared(runs: Sequence[Run], source: Source | None) -> list[Section]:
    if source is None:
        return []
    exhibits = (*compare(runs, source),) or (paragraph("No dataset and algorithm of these runs was published there."),)
    return [Section(f"Compared with {source.title}", exhibits)]


def _chosen(chosen: Iterable[tuple[str, Choice]], domains: Sequence[str]) -> Part:
    rows = [
        (
            selection,
            choice.label,
            domains[choice.domain],
            choice.trial_seed,
            f"{100 * choice.accuracy:.1f}" if choice.accuracy is not None else f"X ({choice.reason})",
            (choice.run or "")[:10],
            "" if choice.step is None else choice.step,
        )
        for selection, choice in chosen
    ]
    head = ("Selection", "Algorithm", "Held out", "Trial seed", "Accuracy, % (or 100 R²)", "Run", "Step")
    return listing(head, rows, "Selected runs and steps")


def _unfinished(runs: Iterable[Run]) -> list[Section]:
    rows = []
    for run in runs:
        if run.status != "done":
            last = f"last record at step {run.records[-1]['step']}" if run.records else "no record"
            reason = without_folders(run.failure or last)
            rows.append((run.dataset, run.label, run.held_out, run.hparams_seed, run.trial_seed, run.status, reason))
    head = ("Dataset", "Algorithm", "Held out", "Hparams seed", "Trial seed", "Status", "Reason")
    return [Section("Runs that did not finish", (listing(head, rows),))] if rows else []


def _trials(runs: Sequence[Run]) -> Section:
    rows = [
        (
            run.id[:10],
            run.dataset,
            run.label,
            run.held_out,
            run.hparams_seed,
            run.trial_seed,
            run.status,
            " · ".join(f"{name} {value}" for name, value in _settings(run.trial)),
        )
        for run in runs
    ]
    head = ("Run", "Dataset", "Algorithm", "Held out", "Hparams seed", "Trial seed", "Status", "Settings")
    return Section("Details", (listing(head, rows, f"All {len(runs)} trials and their hyperparameters"),))


def _settings(trial: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the name and value of every setting of a trial that is not in another column."""
    for key, value in trial.items():
        if key in ("dataset", "test_domains", "hparams_seed", "trial_seed"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                prefix = "" if key == "training" else f"{part.get('name', key)}."
                yield from ((f"{prefix}{name}", setting) for name, setting in part.items() if name != "name")
            else:
                yield key, part
