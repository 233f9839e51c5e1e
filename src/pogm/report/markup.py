"""Tables and figures as HTML, with every name escaped and the numbers beside them for the page's script."""

import re
from collections.abc import Iterable, Sequence

from pogm.benchmark.results.table import Cell, Column, Estimate, Table, Tabular
from pogm.report import charts
from pogm.report.axes import axes_of
from pogm.report.escaping import data_block, escape, slug
from pogm.report.figure import Figure, Panel

NUMBER = re.compile(r"[+−-]?\d")


class Html(str):
    """Markup that is written as it is. All other text is escaped."""


Exhibit = Tabular | Figure | Html


def exhibit_html(exhibit: Exhibit, anchor: str, under: str = "", command: str | None = None) -> str:
    """Return a table, a figure or markup as HTML.

    Args:
        exhibit: What to show.
        anchor: Address within the page.
        under: Title of the section. It is not repeated as the title of a table.
        command: Command line that makes the exhibit.
    """
    if isinstance(exhibit, Tabular):
        return table_html(exhibit.table(), anchor, under, command)
    return figure_html(exhibit, anchor, command) if isinstance(exhibit, Figure) else exhibit


def table_html(table: Table, anchor: str, under: str = "", command: str | None = None) -> str:
    """Return a table with its selection above, its notes beneath, and its CSV for the page's script."""
    selection = table.selection
    titles = [title for title in (table.title, selection.title if selection else "") if title and title != under]
    notes = [*([selection.rule] if selection else []), *table.notes, *table.conclusion]
    name = slug(f"{table.title} {selection.name}" if selection else table.title)
    return (
        f'<figure class="table" id="{anchor}">{_heading(*titles)}<div class="scroll" tabindex="0">'
        f"<table><thead><tr>{_table_head(table)}</tr></thead><tbody>{_table_body(table)}</tbody></table></div>"
        f"{_caption('', notes, command)}{data_block({'name': name, 'csv': table.csv()})}</figure>"
    )


def _table_head(table: Table) -> str:
    label = [f'<th scope="col">{escape(table.row_key.capitalize())}</th>'] if table.row_key else []
    heads = (f'<th scope="col"{_class(table, j)}>{escape(table.columns[j].heading)}</th>' for j in table.shown)
    return "".join([*label, *heads])


def _table_body(table: Table) -> str:
    """All rows. The label of a row, or its first cell if rows have no labels, is the head of the row."""
    first, *others = table.shown
    if table.row_key:
        heads, others = [row.label for row in table.rows], [first, *others]
    else:
        heads = [table.columns[first].text(row.cells[first]) for row in table.rows]
    columns = (_table_column(table, j) for j in others)
    rows = (f'<th scope="row">{lines(head)}</th>{"".join(cells)}' for head, *cells in zip(heads, *columns, strict=True))
    return "".join(f"<tr>{row}</tr>" for row in rows)


def _table_column(table: Table, j: int) -> list[str]:
    kind, best = _class(table, j), table.best(j)
    return [_cell(table, j, row.cells[j], kind, best=i in best) for i, row in enumerate(table.rows)]


def _class(table: Table, j: int) -> str:
    """Class of the cells of a column: columns of words are aligned to the left."""
    column = table.columns[j]
    is_words = column.kind == "text" and not any(NUMBER.match(str(row.cells[j])) for row in table.rows)
    return ' class="words"' if is_words else ""


def _cell(table: Table, j: int, cell: Cell, kind: str, *, best: bool) -> str:
    column = table.columns[j]
    if not isinstance(cell, Estimate):
        return f"<td{kind}>{lines(column.text(cell))}</td>"
    if cell.mean is None:
        return f'<td class="missing">{escape(column.missing)} <small>{escape(cell.reason)}</small></td>'
    mean = f"<b>{column.mean_text(cell.mean)}</b>" if best else column.mean_text(cell.mean)
    return f"<td{_tooltip(column, cell)}>{mean}{_small(column.error_text(cell))}{_small(table.marks(j, cell))}</td>"


def _tooltip(column: Column, cell: Estimate) -> str:
    return f' title="n = {cell.n}"' if "n" in column.fields else ""


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def figure_html(figure: Figure, anchor: str, command: str | None = None) -> str:
    """Return small charts under one legend, how to read them, and their numbers."""
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
    """Explanation, notes, and the command that makes the exhibit."""
    made = f"Made by <code>{escape(command)}</code>" if command else ""
    parts = [escape(reading), "<br>".join(filter(None, [" ".join(map(escape, notes)), made]))]
    return f"<figcaption>{''.join(f'<p>{part}</p>' for part in parts if part)}</figcaption>"


def details(summary: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Return a list that opens on a click; empty if there are no rows."""
    return Html(f"<details><summary>{escape(summary)}</summary>{grid(head, rows)}</details>" if rows else "")


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a plain list with a head: no caption, no label for its rows."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{lines(value)}</td>' for value in row)}</tr>" for row in rows)
    return Html(
        f'<div class="scroll" tabindex="0"><table class="list"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def paragraph(text: str) -> Html:
    """Return text as a paragraph in a muted colour."""
    return Html(f'<p class="muted">{escape(text)}</p>')


def lines(value: object) -> str:
    """Escape text and keep its line breaks."""
    return "<br>".join(map(escape, str(value).splitlines()))
