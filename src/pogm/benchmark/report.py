"""The report: every table, curve and angle of a set of runs, in one HTML file that needs nothing else."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import fmean, pstdev

from pogm import __version__
from pogm.benchmark import charts
from pogm.benchmark.charts import Point, Series, escape
from pogm.benchmark.comparison import HEAD, Comparison, compare
from pogm.benchmark.published import Source
from pogm.benchmark.records import Run, accuracy, finite
from pogm.benchmark.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, Choice
from pogm.benchmark.tables import (
    Cell,
    Table,
    averages_table,
    dataset_table,
    domains_of,
    labels_of,
    rankings,
)
from pogm.core.errors import UsageError

Sample = tuple[int, int, float]  # trial seed, step, value


def curves(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Series]:
    """Accuracy in percent on a held-out domain (or on all, averaged) over steps: one series per algorithm."""

    def samples(run: Run) -> Iterator[Sample]:
        (held_out,) = run.test_domains
        if domain in (None, held_out):
            for record in run.records:
                yield run.trial_seed, record["step"], 100 * accuracy(record, "in", held_out)

    return _series(runs, dataset, samples)


def angles(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Series]:
    """cos(h_i, h) of a source domain i (or of all, averaged) over steps: one series per algorithm.

    Where a step did not move, the angle is undefined and the mean is over the rest.
    """

    def samples(run: Run) -> Iterator[Sample]:
        for record in run.records:
            measured = (record.get("metrics") or {}).get("angle")
            if isinstance(measured, list) and len(measured) == len(run.train_domains):
                for source, value in zip(run.train_domains, map(finite, measured), strict=True):
                    if domain in (None, source) and not math.isnan(value):
                        yield run.trial_seed, record["step"], value

    return _series(runs, dataset, samples)


def _series(runs: Iterable[Run], dataset: str, samples: Callable[[Run], Iterator[Sample]]) -> list[Series]:
    """Means over what a trial seed has at a step, then mean and standard error over trial seeds.

    From finished runs that hold out one domain, with the algorithm's first configuration (its defaults):
    a mean over a random search would show the search.
    """
    runs = list(runs)
    found = []
    for colour, label in enumerate(labels_of(runs)):
        usable = [r for r in runs if (r.dataset, r.label, len(r.test_domains)) == (dataset, label, 1) and r.done]
        first = min((run.hparams_seed for run in usable), default=0)
        usable = [run for run in usable if run.hparams_seed == first]
        twins = Counter((run.test_domains, run.trial_seed) for run in usable)
        by_step: dict[int, dict[int, list[float]]] = {}
        for run in usable:
            if twins[run.test_domains, run.trial_seed] == 1:  # as in selection: never mix settings
                for seed, step, value in samples(run):
                    by_step.setdefault(step, {}).setdefault(seed, []).append(value)
        points = tuple(_point(step, [fmean(v) for v in by_step[step].values()]) for step in sorted(by_step))
        if points:
            found.append(Series(label, points, colour))
    return found


def _point(step: int, values: Sequence[float]) -> Point:
    mean = fmean(values)
    spread = 0.0 if math.isnan(mean) else pstdev(values) / math.sqrt(len(values))
    return Point(step, mean, spread, len(values))


def write_picture(runs: Iterable[Run], path: Path | str, dataset: str | None = None) -> Path:
    """A standalone SVG, twice as wide as high: the mean angle beside the test accuracy, for one dataset."""
    runs = list(runs)
    if not runs:
        raise UsageError("Expected runs to draw; found none. Pass a folder that holds finished runs.")
    dataset = dataset or runs[0].dataset
    angle, curve = angles(runs, dataset), curves(runs, dataset)
    panels = [
        (angle, "Agreement of the update with its source domains", ANGLE),
        (curve, "Accuracy on the unseen domain", ACCURACY),
    ]
    drawn = [
        charts.line_chart(lines, title=name, y_label=unit, width=432, height=408, at=(24 + 480 * column, 56))
        for column, (lines, name, unit) in enumerate(panels)
    ]
    title = f"{dataset}: agreement of the update with its source domains, and accuracy on the unseen domain"
    return _write(path, charts.standalone(drawn, curve or angle, title=title, width=960, height=480))


ANGLE, ACCURACY = "cos(hᵢ, h)", "accuracy, %"

READ_CURVES = """
Each chart holds out one domain and follows the accuracy on it while the algorithms train on the others.
Higher is better; where a line wobbles, the result depends on when training stops.
"""

READ_ANGLES = """
The cosine between where a source domain alone would move the model (hᵢ) and where the algorithm moved it (h):
at 1 they agree, below 0 the update works against that domain. An algorithm that is high in every chart serves
all its domains at once. Runs that train on the domain, whichever other they hold out, are averaged first.
"""

AVERAGED = """
Lines are means over trial seeds, of finished runs with an algorithm's first configuration (hparams seed 0,
its defaults, where that was run); bands are ± one standard error.
"""


def write_report(
    runs: Iterable[Run],
    path: Path | str = "report.html",
    *,
    command: str | None = None,
    title: str = "Domain generalization report",
    against: Source | None = None,
) -> Path:
    """Write the report and return its path; a folder gets a `report.html` inside.

    With published results to hold against, those come beside ours.
    """
    runs = list(runs)
    path = Path(path)
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    body = [_header(runs, title, command)]
    if not runs:
        body.append("<p>There are no runs here yet.</p>")
    if len(datasets) > 1:
        links = "".join(f'<li><a href="#dataset-{i}">{escape(name)}</a></li>' for i, name in enumerate(datasets))
        body += [f"<nav><ul>{links}</ul></nav>", _averages(runs)]
    body += [_dataset(runs, name, f"dataset-{i}") for i, name in enumerate(datasets)]
    body += [_beside(runs, against), _stopped(runs), _trials(runs)]
    return _write(path / "report.html" if path.is_dir() else path, _page(title, "\n".join(filter(None, body))))


def _page(title: str, body: str) -> str:
    style = resources.files("pogm.benchmark").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{style}{charts.STYLE}{charts.colour_style()}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _header(runs: Sequence[Run], title: str, command: str | None) -> str:
    counts = Counter(run.status for run in runs)
    statuses = ["done", *sorted(counts.keys() - {"done"})]
    facts = {
        "Runs": " · ".join(f"{counts[status]}\N{NO-BREAK SPACE}{status}" for status in statuses),
        "Datasets": ", ".join(dict.fromkeys(run.dataset for run in runs)),
        "Algorithms": ", ".join(labels_of(runs)),
        "Trial seeds": ", ".join(str(seed) for seed in sorted({run.trial_seed for run in runs})),
        **_provenance(runs),
    }
    listed = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    made = f"Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by pogm {__version__}"
    by = f"<pre><code>{escape(command)}</code></pre>" if command else ""
    return f'<header><h1>{escape(title)}</h1><p class="muted">{made}</p>{by}<dl>{listed}</dl></header>'


def _provenance(runs: Iterable[Run]) -> dict[str, str]:
    """What the runs say they were made with; every value, where they differ."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.provenance.items():
            if isinstance(value, str | int | float):
                values.setdefault(key, {})[str(value)] = None
    return {
        key: ", ".join(found) if len(found) <= 3 else f"{len(found)} different values" for key, found in values.items()
    }


def _averages(runs: Sequence[Run]) -> str:
    parts = ["<section><h2>All datasets</h2>"]
    for selection in SELECTIONS:
        table = averages_table(runs, selection)
        if not table.empty:
            parts.append(_table(table))
            parts.append(_ranks(table))
    return "\n".join([*parts, "</section>"])


def _ranks(table: Table) -> str:
    ranked = rankings(table)
    if len(ranked) < 2:
        return ""
    head = ("Algorithm", "Arithmetic mean", "Geometric mean", "Median")
    rows = [(r.label, f"{r.arithmetic_mean:.2f}", f"{r.geometric_mean:.2f}", f"{r.median:g}") for r in ranked]
    return _details(f"Mean ranks over datasets (lower is better), {table.selection.title}", head, rows)


def _dataset(runs: Sequence[Run], dataset: str, anchor: str) -> str:
    domains = domains_of(run for run in runs if run.dataset == dataset)
    parts = [f'<section id="{anchor}"><h2>{escape(dataset)}</h2>']
    chosen: list[tuple[str, Choice]] = []
    for selection in SELECTIONS:
        table = dataset_table(runs, dataset, selection)
        if table.empty and selection is LEAVE_ONE_DOMAIN_OUT:
            parts.append(f'<p class="muted">{selection.title} needs runs that hold out two domains: none here.</p>')
            continue
        parts.append(_table(table))
        here = [run for run in runs if run.dataset == dataset]
        chosen += [(selection.name, choice) for choice in selection(here)]
    parts.append(_chosen(chosen, domains))

    accuracies = {f"Held out: {name}": curves(runs, dataset, i) for i, name in enumerate(domains)}
    measured = {"Mean over source domains": angles(runs, dataset)}
    measured |= {f"Source domain: {name}": angles(runs, dataset, i) for i, name in enumerate(domains)}
    parts += [
        _figures("Accuracy on the unseen domain", accuracies, ACCURACY, 100.0, READ_CURVES),
        _figures("Agreement of the update with its source domains", measured, ANGLE, 1.0, READ_ANGLES),
    ]
    return "\n".join([*filter(None, parts), "</section>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = []
    for i, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        shown = "".join(_cell(table, cell, best=i in table.best(j)) for j, cell in enumerate(cells))
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{shown}</tr>')
    notes = "".join(f"<br>{escape(note)}" for note in table.footnotes)
    return (
        f'<figure class="table"><h3>{escape(table.selection.title)}</h3><div class="scroll" tabindex="0">'
        f'<table><thead><tr><th scope="col">Algorithm</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{escape(table.selection.rule)}{notes}</figcaption></figure>"
    )


def _cell(table: Table, cell: Cell, *, best: bool) -> str:
    if cell.mean is None:
        return f'<td class="missing">X <small>{escape(cell.reason)}</small></td>'
    error = "" if cell.stderr is None else f"<small> ± {cell.stderr:.1f}</small>"
    mean = f"<b>{cell.mean:.1f}</b>" if best else f"{cell.mean:.1f}"
    marks = f"<small>{escape(table.marks(cell))}</small>" if table.marks(cell) else ""
    return f'<td title="n = {cell.n}">{mean}{error}{marks}</td>'


def _beside(runs: Sequence[Run], source: Source | None) -> str:
    if source is None:
        return ""
    shown = "".join(map(_comparison, compare(runs, source))) or '<p class="muted">They have nothing in common.</p>'
    return f"<section><h2>Beside {escape(source.title)}</h2>{shown}</section>"


def _comparison(comparison: Comparison) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEAD)
    rows = []
    for pair in comparison.pairs:
        first, *rest = pair.shown()
        cells = "".join(f"<td>{escape(text)}</td>" for text in rest)
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    notes = "<br>".join(map(escape, comparison.footnotes))
    return (
        f'<figure class="table"><h3>{escape(comparison.selection.title)}</h3><div class="scroll" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{notes}</figcaption></figure>"
    )


def _figures(title: str, by_title: Mapping[str, list[Series]], y_label: str, ceiling: float, reading: str) -> str:
    """Small charts on one scale, with one legend for all; nothing where nothing was measured."""
    drawn = {name: series for name, series in by_title.items() if series}
    extents = [found for series in drawn.values() if (found := charts.extent(series))]
    if not extents:
        return ""
    y_range = min(low for low, _ in extents), min(ceiling, max(high for _, high in extents))
    legend = {line.name: line for series in drawn.values() for line in series}
    keys = "".join(f"<li>{charts.swatch(line)}{escape(name)}</li>" for name, line in legend.items())
    small = "".join(
        f"<div>{charts.line_chart(series, title=name, y_label=y_label, y_range=y_range)}</div>"
        for name, series in drawn.items()
    )
    return (
        f'<figure><h3>{escape(title)}</h3><ul class="legend">{keys}</ul><div class="charts">{small}</div>'
        f"<figcaption>{escape(' '.join((reading + AVERAGED).split()))}</figcaption></figure>"
    )


def _chosen(chosen: Iterable[tuple[str, Choice]], domains: Sequence[str]) -> str:
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
    head = ("Selection", "Algorithm", "Held out", "Trial seed", "Accuracy, %", "Run", "Step")
    return _details("Which runs and steps were chosen", head, rows)


def _stopped(runs: Iterable[Run]) -> str:
    rows = []
    for run in runs:
        if run.status != "done":
            last = f"last record at step {run.records[-1]['step']}" if run.records else "no record"
            why = run.failure or last
            rows.append((run.dataset, run.label, _held_out(run), run.hparams_seed, run.trial_seed, run.status, why))
    if not rows:
        return ""
    head = ("Dataset", "Algorithm", "Held out", "Hparams seed", "Trial seed", "Status", "Reason")
    listed = _grid(head, rows)
    return f"<section><h2>Runs that did not finish</h2>{listed}</section>"


def _trials(runs: Sequence[Run]) -> str:
    rows = [
        (
            run.id[:10],
            run.dataset,
            run.label,
            _held_out(run),
            run.hparams_seed,
            run.trial_seed,
            run.status,
            " · ".join(f"{name} {value}" for name, value in _settings(run.trial)),
        )
        for run in runs
    ]
    head = ("Run", "Dataset", "Algorithm", "Held out", "Hparams seed", "Trial seed", "Status", "Settings")
    listed = _details(f"All {len(runs)} trials and their hyperparameters", head, rows)
    return f"<section><h2>Details</h2>{listed}</section>" if runs else ""


def _held_out(run: Run) -> str:
    return ", ".join(run.domains[i] for i in sorted(run.test_domains))


def _settings(trial: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Everything that was set, but for what the other columns say."""
    for key, value in trial.items():
        if key in ("dataset", "test_domains", "hparams_seed", "trial_seed"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                prefix = "" if key == "training" else f"{part.get('name', key)}."
                yield from ((f"{prefix}{name}", setting) for name, setting in part.items() if name != "name")
            else:
                yield key, part


def _details(summary: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"<details><summary>{escape(summary)}</summary>{_grid(head, rows)}</details>" if rows else ""


def _grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_lines(value)}</td>' for value in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="list"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _lines(value: object) -> str:
    return "<br>".join(map(escape, str(value).splitlines()))


def _write(path: Path | str, text: str) -> Path:
    """Whole or not at all: a reader never opens half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
