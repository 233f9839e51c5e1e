"""Renderers of a `Table`, one for each format: plain text, CSV, JSON and LaTeX."""

import csv
import io
import math
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.box import HORIZONTALS
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pogm._system.errors import UsageError
from pogm._system.terminal import printable
from pogm.benchmark.results.table import FIELDS, NUMBERS, TEST_IMAGES, Cell, Column, Estimate, Row, Table

NARROWEST = 72  # width of the notes beneath a narrow table, in characters


# Plain text.


def render_text(table: Table) -> str:
    """Return plain aligned text: the table, its selection rule and its footnotes. Lines are never cut."""
    grid = RichTable(box=HORIZONTALS, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [_text_column(table, j) for j in table.shown]
    if table.row_key:
        labels = [printable(row.label) for row in table.rows]
        columns.insert(0, ["", *labels, *([TEST_IMAGES] if table.test_images else [])])
    for heading, *_ in columns:
        grid.add_column(Text(heading), no_wrap=True)
    for i, row in enumerate(table.rows):
        if i and row.group != table.rows[i - 1].group:
            grid.add_section()
        grid.add_row(*(Text(cells[i + 1]) for cells in columns))
    if table.test_images:
        grid.add_section()
        grid.add_row(*(Text(cells[-1]) for cells in columns))
    out = io.StringIO()
    Console(file=out, width=sys.maxsize, color_system=None, force_terminal=False).print(grid)
    lines = [line[1:].rstrip() for line in out.getvalue().splitlines()]  # without the left border
    width = max(NARROWEST, len(lines[0]))
    notes = [textwrap.fill(printable(note), width) for note in _notes(table)]
    conclusion = [textwrap.fill(printable(text), width, subsequent_indent="  ") for text in table.conclusion]
    ending = [lines[0], "Conclusion", *conclusion] if conclusion else []
    return "\n".join([printable(table.title), *lines, *notes, *ending]) + "\n"


def _text_column(table: Table, j: int) -> list[str]:
    """Return the heading and the cells of a column. Numbers end at the same position, and their marks follow."""
    column, best = table.columns[j], table.best(j)
    texts = [printable(column.heading), *(printable(column.text(row.cells[j])) for row in table.rows)]
    texts += [_count(column.test_images)] if table.test_images else []
    if column.kind == "text":
        return texts
    marks = ["", *("*" * (i in best) + table.marks(j, row.cells[j]) for i, row in enumerate(table.rows))]
    marks += [""] if table.test_images else []
    width = max(map(cell_len, texts))
    return [" " * (width - cell_len(text)) + text + mark for text, mark in zip(texts, marks, strict=True)]


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def _notes(table: Table) -> list[str]:
    rule = [f"{table.selection.title}. {table.selection.rule}"] if table.selection else []
    starred = any(table.best(j) for j in table.shown)
    return [*rule, *(["* Best of its column."] if starred else []), *table.notes]


# CSV.


def tables_csv(tables: Iterable[Table]) -> str:
    """Return several tables as one CSV, with one line for each key.

    The average of a dataset is in two tables, and only one of them has its standard error. Of two lines with the same
    key, the one with more values is written.

    Raises:
        UsageError: If the tables have different columns, or if only some of them stop early by the test domain.
    """
    tables = list(tables)
    if len({table.selection is not None and table.selection.early_stopped_oracle for table in tables}) > 1:
        raise UsageError(
            "Expected tables that can be compared; found the early-stopped oracle beside other selections. "
            "Write it to a file of its own."
        )
    with_images = any(table.csv_keys and table.test_images for table in tables)  # in one of them: a column in all
    headers = list(dict.fromkeys(_csv_header(table, with_images) for table in tables))
    if len(headers) > 1:
        raise UsageError(f"Expected tables with the same columns; found {headers}. Write them to separate files.")
    lines: dict[tuple[object, ...], list[str]] = {}
    for number, table in enumerate(tables):
        for key, line in _csv_lines(table, with_images):
            name = key or (number, len(lines))
            if name not in lines or line.count("") < lines[name].count(""):
                lines[name] = line
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(printable, line) for line in [*headers, *lines.values()])
    return out.getvalue()


def _csv_header(table: Table, with_images: bool) -> tuple[str, ...]:
    if table.csv_keys:
        numbers = [name for name in NUMBERS if all(name in c.fields for c in table.columns)]
        return (*table.csv_keys, *numbers, *["test_images"] * with_images)
    label = [table.row_key] if table.row_key else []  # unless the cells of a row identify it
    return (*label, *(name for column in table.columns for name in _csv_names(column)))


def _csv_names(column: Column) -> list[str]:
    """Return the names of a column's values if CSV has one line per row."""
    if column.kind != "estimate":
        return [column.key]
    return [column.csv_prefix + name for name in NUMBERS if name in column.fields]


def _csv_lines(table: Table, with_images: bool) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """Yield the key and the values of each line; the key is empty if a line has one row."""
    known = {"selection": table.selection.name} if table.selection else {}
    for row in table.rows:
        pairs = list(zip(table.columns, row.cells, strict=True))
        if not table.csv_keys:
            values = (value for column, cell in pairs for value in _csv_values(column, cell))
            yield (), [*([row.key] if table.row_key else []), *values]
            continue
        for column, cell in pairs:
            ids = known | {table.row_key: row.key} | dict(column.ids)
            key = tuple(ids[name] for name in table.csv_keys)
            yield key, [*key, *_csv_values(column, cell), *[_count(column.test_images)] * with_images]


def _csv_values(column: Column, cell: Cell) -> list[str]:
    if not isinstance(cell, Estimate):
        return [_csv_number(cell, column)]
    return [_csv_number(getattr(cell, name), column) for name in NUMBERS if name in column.fields]


def _csv_number(value: str | int | float | None, column: Column) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, column.csv_digits) if isinstance(value, float) else str(value)


# JSON.


def table_dict(table: Table) -> dict[str, Any]:
    """Return a JSON object: title, selection, columns, rows and footnotes. What is undefined is null."""
    content: dict[str, Any] = {"title": table.title}
    if table.selection:
        selection = table.selection
        content["selection"] = {"name": selection.name, "title": selection.title, "rule": selection.rule}
    columns = [table.columns[j] for j in table.shown]
    rows = [{table.columns[j].key: _json_cell(table, row, j) for j in table.shown} for row in table.rows]
    images = {column.key: column.test_images for column in columns if column.test_images is not None}
    content |= {
        **table.properties,
        "columns": [column.key for column in columns],
        "units": {column.key: column.unit for column in columns if column.unit},
        "rows": dict(zip(table.labels, rows, strict=True)) if table.row_key else rows,
        **({"test_images": images} if table.test_images else {}),
        "footnotes": table.footnotes,
    }
    if meanings := {row.key: row.meaning for row in table.rows if row.meaning}:
        content["meanings"] = meanings
    if table.conclusion:
        content["conclusion"] = " ".join(table.conclusion)
    return {table.json_names.get(name, name): value for name, value in content.items()}


def _json_cell(table: Table, row: Row, j: int) -> object:
    column, cell = table.columns[j], row.cells[j]
    if isinstance(cell, Estimate):
        return {name: getattr(cell, name) for name in FIELDS if name in column.fields}
    return None if isinstance(cell, float) and math.isnan(cell) else cell


# LaTeX.


def render_latex(table: Table) -> str:
    """Return a tabular for the package booktabs, with the best of every column in bold and the notes as comments."""
    kinds = ["l"] * bool(table.row_key) + ["l" if table.columns[j].kind == "text" else "r" for j in table.shown]
    head = [table.row_key.capitalize()] * bool(table.row_key) + list(map(latex_text, table.headings))
    lines = [rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
    best = {j: table.best(j) for j in table.shown}
    for i, row in enumerate(table.rows):
        cells = [latex_text(row.label)] if table.row_key else []
        for j in table.shown:
            text = latex_text(table.columns[j].text(row.cells[j]))
            text = rf"\textbf{{{text}}}" if i in best[j] else text
            cells.append(text + latex_text(table.marks(j, row.cells[j])))
        lines.append(" & ".join(cells) + r" \\")
    if table.test_images:
        lines += [r"\midrule", " & ".join([TEST_IMAGES, *map(_count, table.test_images)]) + r" \\"]
    rule = [table.selection.title, table.selection.rule] if table.selection else []
    notes = [f"% {printable(note)}" for note in (table.title, *rule, *table.notes, *table.conclusion)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{char: rf"\{char}" for char in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "†": r"$\dagger$",
        "−": "$-$",
        "°": r"$^\circ$",
    }
)


def latex_text(text: str) -> str:
    """Escape text for LaTeX."""
    return printable(text).translate(_LATEX)
