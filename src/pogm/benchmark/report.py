"""The report: every table, curve and angle of a set of runs, in one HTML file that needs nothing else."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from pogm import __version__
from pogm.benchmark import charts
from pogm.benchmark.charts import Series, escape
from pogm.benchmark.comparison import compare
from pogm.benchmark.markup import comparison_html, details, grid, table_html
from pogm.benchmark.published import Source
from pogm.benchmark.ranking import rankings
from pogm.benchmark.records import Run
from pogm.benchmark.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, Choice
from pogm.benchmark.series import ACCURACY, ANGLE, angles, curves
from pogm.benchmark.tables import (
    Table,
    averages_table,
    dataset_table,
    domains_of,
    labels_of,
)
from pogm.core.files import write_whole

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
Lines are means over trial seeds, of finished runs with an algorithm's first configuration (hparams seed 0, which is
not drawn at random, where that was run); bands are ± one standard error.
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
    path = path / "report.html" if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _page(title, "\n".join(filter(None, body))).encode())
    return path


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
            parts.append(table_html(table))
            parts.append(_ranks(table))
    return "\n".join([*parts, "</section>"])


def _ranks(table: Table) -> str:
    ranked = rankings(table)
    if len(ranked) < 2:
        return ""
    head = ("Algorithm", "Arithmetic mean", "Geometric mean", "Median")
    rows = [(r.label, f"{r.arithmetic_mean:.2f}", f"{r.geometric_mean:.2f}", f"{r.median:g}") for r in ranked]
    return details(f"Mean ranks over datasets (lower is better), {table.selection.title}", head, rows)


def _dataset(runs: Sequence[Run], dataset: str, anchor: str) -> str:
    domains = domains_of(run for run in runs if run.dataset == dataset)
    parts = [f'<section id="{anchor}"><h2>{escape(dataset)}</h2>']
    chosen: list[tuple[str, Choice]] = []
    for selection in SELECTIONS:
        table = dataset_table(runs, dataset, selection)
        if table.empty and selection is LEAVE_ONE_DOMAIN_OUT:
            parts.append(f'<p class="muted">{selection.title} needs runs that hold out two domains: none here.</p>')
            continue
        parts.append(table_html(table))
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


def _beside(runs: Sequence[Run], source: Source | None) -> str:
    if source is None:
        return ""
    shown = "".join(map(comparison_html, compare(runs, source))) or '<p class="muted">They have nothing in common.</p>'
    return f"<section><h2>Beside {escape(source.title)}</h2>{shown}</section>"


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
    return details("Which runs and steps were chosen", head, rows)


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
    listed = grid(head, rows)
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
    listed = details(f"All {len(runs)} trials and their hyperparameters", head, rows)
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
