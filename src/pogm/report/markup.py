"""Tables and figures as HTML, with every name escaped and the numbers beside them for the page's script."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pogm.benchmark.results.comparison import HEAD, Comparison, comparisons_csv
from pogm.benchmark.results.tables import Cell, Table
from pogm.report import charts
from pogm.report.axes import axes_of
from pogm.report.escaping import data_block, escape, slug
from pogm.report.figure import Figure, Panel

NUMBER = re.compile(r"[+−-]?\d")


class Html(str):
    """Markup, shown as it is; all other text is escaped."""


@dataclass(frozen=True)
class Listing:
    """Rows of anything under a head, and beneath them what to know about them."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    notes: tuple[str, ...] = ()

    def csv(self) -> str:
        """As it is shown."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.head, *self.rows])
        return out.getvalue()


Exhibit = Table | Comparison | Listing | Figure | Html


def exhibit_html(exhibit: Exhibit, anchor: str, under: str = "", command: str | None = None) -> str:
    """Anything a section shows. `under` is the section's title, which need not be said again."""
    if isinstance(exhibit, Table):
        return table_html(exhibit, anchor, under, command)
    if isinstance(exhibit, Comparison):
        return comparison_html(exhibit, anchor, command)
    if isinstance(exhibit, Listing):
        return listing_html(exhibit, anchor, command)
    return figure_html(exhibit, anchor, command) if isinstance(exhibit, Figure) else exhibit


def table_html(table: Table, anchor: str, under: str = "", command: str | None = None) -> str:
    """A table of ours, with its selection above and its rule, footnotes and command beneath."""
    head = (f'<th scope="col">{escape(title)}</th>' for title in ("Algorithm", *table.columns))
    rows = []
    for i, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        shown = "".join(_cell(table, cell, best=i in table.best(j)) for j, cell in enumerate(cells))
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{shown}</tr>')
    titles = [title for title in (table.title, table.selection.title) if title != under]
    name = slug(f"{table.title} {table.selection.name}")
    says = [table.selection.rule, *table.footnotes]
    return _table(titles, head, rows, _caption("", says, command), anchor, name, table.csv())


def comparison_html(comparison: Comparison, anchor: str, command: str | None = None) -> str:
    """Ours beside published numbers."""
    counts = sorted({pair.ours.n for pair in comparison.pairs})
    trials = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    ours = f"Ours: n = {trials} trial{'s' * (trials != '1')}."
    rows, notes = (pair.shown() for pair in comparison.pairs), (comparison.selection.rule, *comparison.footnotes, ours)
    listing = Listing(comparison.selection.title, HEAD, tuple(rows), notes)
    return _listing(listing, anchor, command, slug(comparison.title), comparisons_csv([comparison]))


def listing_html(listing: Listing, anchor: str, command: str | None = None) -> str:
    """Rows whose first cell says what they are about."""
    return _listing(listing, anchor, command, slug(listing.title), listing.csv())


def _listing(listing: Listing, anchor: str, command: str | None, name: str, numbers: str) -> str:
    columns = [[str(row[place]) for row in listing.rows] for place in range(len(listing.head))]
    words = ["" if any(map(NUMBER.match, column)) else ' class="words"' for column in columns]
    rows = []
    for first, *rest in listing.rows:
        cells = (f"<td{kind}>{lines(value)}</td>" for kind, value in zip(words[1:], rest, strict=True))
        rows.append(f'<tr><th scope="row">{lines(first)}</th>{"".join(cells)}</tr>')
    head = (f'<th scope="col"{kind}>{escape(title)}</th>' for kind, title in zip(words, listing.head, strict=True))
    return _table([listing.title], head, rows, _caption("", listing.notes, command), anchor, name, numbers)


def _table(
    titles: Iterable[str], head: Iterable[str], rows: Iterable[str], caption: str, anchor: str, name: str, numbers: str
) -> str:
    return (
        f'<figure class="table" id="{anchor}">{_heading(*titles)}<div class="scroll" tabindex="0">'
        f"<table><thead><tr>{''.join(head)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"{caption}{data_block({'name': name, 'csv': numbers})}</figure>"
    )


def _cell(table: Table, cell: Cell, *, best: bool) -> str:
    if cell.mean is None:
        return f'<td class="missing">X <small>{escape(cell.reason)}</small></td>'
    error = "" if cell.stderr is None else f"<small> ± {cell.stderr:.1f}</small>"
    mean = f"<b>{cell.mean:.1f}</b>" if best else f"{cell.mean:.1f}"
    marks = f"<small>{escape(table.marks(cell))}</small>" if table.marks(cell) else ""
    return f'<td title="n = {cell.n}">{mean}{error}{marks}</td>'


def figure_html(figure: Figure, anchor: str, command: str | None = None) -> str:
    """Small charts under one legend, how to read them, and their numbers."""
    legend = charts.legend(figure)
    keys = {name: key for key, name in enumerate(legend)}
    entries = "".join(
        f'<li data-key="{keys[name]}">{charts.swatch(mark)}<span>{escape(name)}</span></li>'
        for name, mark in legend.items()
    )
    panels = "".join(f'<div class="panel">{charts.chart(panel, keys)}</div>' for panel in figure.panels)
    data = {"name": figure.name, "panels": [_panel_data(panel, keys) for panel in figure.panels]}
    return (
        f'<figure class="figure" id="{anchor}">{_heading(figure.title)}<ul class="legend">{entries}</ul>'
        f'<div class="charts">{panels}</div>{_caption(figure.reading, figure.notes, command)}'
        f"{data_block(data)}</figure>"
    )


def _panel_data(panel: Panel, keys: dict[str, int]) -> dict[str, object]:
    axes = axes_of(panel, charts.WIDTH, None)
    marks = [
        {"kind": type(mark).__name__.lower(), "name": mark.name, "key": keys.get(mark.name), "points": mark.points}
        for mark in panel.marks
    ]
    return {
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "x": axes.x_range,
        "y": axes.y_range,
        "square": panel.square,
        "upright": charts.upright_grid(panel),
        "marks": marks,
    }


def _heading(title: str = "", *more: str) -> str:
    beside = "".join(f" <small>{escape(text)}</small>" for text in more)
    return f'<div class="head"><h3>{escape(title)}{beside}</h3></div>'


def _caption(reading: str, notes: Iterable[str], command: str | None) -> str:
    """How to read it; then how it came about."""
    made = f"Made by <code>{escape(command)}</code>" if command else ""
    parts = [escape(reading), "<br>".join(filter(None, [" ".join(map(escape, notes)), made]))]
    return f"<figcaption>{''.join(f'<p>{part}</p>' for part in parts if part)}</figcaption>"


def details(summary: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """A list that opens on request; nothing where it is empty."""
    return Html(f"<details><summary>{escape(summary)}</summary>{grid(head, rows)}</details>" if rows else "")


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Rows of anything, under a head."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{lines(value)}</td>' for value in row)}</tr>" for row in rows)
    return Html(
        f'<div class="scroll" tabindex="0"><table class="list"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def paragraph(text: str) -> Html:
    """A remark."""
    return Html(f'<p class="muted">{escape(text)}</p>')


def lines(value: object) -> str:
    """Text that keeps its line breaks."""
    return "<br>".join(map(escape, str(value).splitlines()))
