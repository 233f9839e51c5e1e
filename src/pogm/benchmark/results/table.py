"""One structure for every result table, and one renderer for each format.

A `Table` has columns, rows and footnotes; a cell is a text, a number or an `Estimate`. To add a column, add a `Column`
and its cells where the table is built: the renderers for text, CSV, JSON and LaTeX in this file and the renderer for
HTML in `pogm.report.markup` read only the structure.
"""

import csv
import io
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from rich.box import HORIZONTALS
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pogm._system.errors import UsageError
from pogm.benchmark.results.records import printable
from pogm.benchmark.results.selection import Selection
from pogm.benchmark.results.statistics import mean_of

FIELDS = ("mean", "stderr", "n", "reason", "incomplete")
NUMBERS = ("mean", "stderr", "n")  # the fields that CSV has
NARROWEST = 72  # width of the notes beneath a narrow table, in characters
INCOMPLETE = "†"


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error over n trials, or the reason why there is none."""

    mean: float | None = None
    stderr: float | None = None  # None if n < 2, and for a mean of other cells
    n: int = 0  # number of trials; 0 if it is unknown
    reason: str = ""  # why there is no mean
    incomplete: bool = False  # a trial or a test domain is missing from the mean


def estimate(values: Iterable[float], *, incomplete: bool = False) -> Estimate:
    """Return mean, standard error and n of the values that are not NaN."""
    found = mean_of(values)
    return Estimate(found.value, found.error, found.n, incomplete=incomplete) if found.n else Estimate()


Cell = Estimate | str | int | float


@dataclass(frozen=True)
class Column:
    """A column: its name, its heading, and how its cells are written."""

    key: str  # name in JSON and, if CSV has one line per row, in CSV
    title: str = ""  # heading in text, LaTeX and HTML; default: the key
    kind: Literal["estimate", "number", "text"] = "estimate"  # type of its cells
    unit: str = ""  # unit of its numbers, such as "%"
    digits: str = ".1f"  # format of its means and numbers
    error_digits: str = ".1f"  # format of its standard errors
    csv_digits: str = ".4f"  # format of its numbers in CSV
    missing: str = "X"  # text of an estimate without a mean, and of NaN
    best: Literal["", "highest", "lowest"] = ""  # which of its means is marked
    per_trial: bool = False  # n of a cell is the number of trials of its mean
    fields: tuple[str, ...] = FIELDS  # fields of its estimates in JSON; the numbers among them are in CSV
    ids: Mapping[str, str] = field(default_factory=dict)  # values of `Table.csv_keys` for its cells
    csv_prefix: str = ""  # before the names of the fields, if CSV has one line per row
    csv_only: bool = False  # not shown in the other formats

    @property
    def heading(self) -> str:
        return self.title or self.key

    def text(self, cell: Cell) -> str:
        """Return a cell as text, such as ``72.0 ± 0.9``, without marks."""
        if isinstance(cell, Estimate):
            if cell.mean is None:
                return f"{self.missing} ({cell.reason})" if cell.reason else self.missing
            return self.mean_text(cell.mean) + self.error_text(cell)
        if isinstance(cell, float):
            return self.missing if math.isnan(cell) else self.mean_text(cell)
        return str(cell)

    def mean_text(self, value: float) -> str:
        """Return a number with the digits of the column; zero has no minus sign."""
        text = format(value, self.digits).rstrip(".")
        return format(0.0, self.digits) if float(text) == 0 else text

    def error_text(self, cell: Estimate) -> str:
        """Return the standard error as text, such as `` ± 0.9``; empty if there is none."""
        return "" if cell.stderr is None else f" ± {format(cell.stderr, self.error_digits)}"

    def rounded(self, cell: Cell) -> float | None:
        """Return the mean as it is printed; None if there is none. Marks and ranks compare printed means."""
        return float(format(cell.mean, self.digits)) if isinstance(cell, Estimate) and cell.mean is not None else None


@dataclass(frozen=True)
class Row:
    """A row: one cell for each column."""

    cells: tuple[Cell, ...]
    key: str = ""  # name in CSV and JSON; empty if the cells identify the row
    title: str = ""  # label in text, LaTeX and HTML; default: the key
    meaning: str = ""  # what the row shows, as a note
    group: str = ""  # text has a line between groups

    @property
    def label(self) -> str:
        return self.title or self.key

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Those cells that are estimates."""
        return tuple(cell for cell in self.cells if isinstance(cell, Estimate))


class Tabular:
    """Base class of everything that can be shown as a table."""

    def table(self) -> "Table":
        """Return the table to show."""
        raise NotImplementedError

    def text(self) -> str:
        """Return plain aligned text for a terminal or a log."""
        return render_text(self.table())

    def csv(self) -> str:
        """Return CSV with a header."""
        return tables_csv([self.table()])

    def json(self) -> str:
        """Return a JSON object with all digits."""
        return render_json(self.table())

    def latex(self) -> str:
        """Return a tabular for the LaTeX package booktabs."""
        return render_latex(self.table())


@dataclass(frozen=True)
class Table(Tabular):
    """Rows and columns of results, under one model selection, with footnotes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    selection: Selection | None = None  # how the models were selected; None: no model was selected
    footnotes: tuple[str, ...] = ()
    row_key: str = ""  # what the keys of the rows are, such as "algorithm"; empty if the rows have no keys
    csv_keys: tuple[str, ...] = ()  # identifiers of a CSV line with one cell; empty: a CSV line has one row
    conclusion: tuple[str, ...] = ()  # sentences after the footnotes
    properties: Mapping[str, Any] = field(default_factory=dict)  # further entries of the JSON object
    json_names: Mapping[str, str] = field(default_factory=dict)  # other names for entries of the JSON object

    def table(self) -> "Table":
        return self

    @property
    def shown(self) -> tuple[int, ...]:
        """Indices of the columns that all formats show."""
        return tuple(j for j, column in enumerate(self.columns) if not column.csv_only)

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(self.columns[j].heading for j in self.shown)

    @property
    def notes(self) -> tuple[str, ...]:
        """Footnotes, then the meanings of the rows."""
        return (*self.footnotes, *(f"{row.label}: {row.meaning}." for row in self.rows if row.meaning))

    @property
    def labels(self) -> tuple[str, ...]:
        """Keys of the rows."""
        return tuple(row.key for row in self.rows)

    @property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        return tuple(row.cells for row in self.rows)

    @cached_property
    def trials(self) -> int:
        """Largest number of trials of a cell."""
        counts = (cell.n for column, cell in self._estimates() if column.per_trial)
        return max(counts, default=0)

    @property
    def empty(self) -> bool:
        """True if no cell that counts trials has a mean."""
        return all(cell.mean is None for column, cell in self._estimates() if column.per_trial)

    def _estimates(self) -> Iterable[tuple[Column, Estimate]]:
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if isinstance(cell, Estimate):
                    yield column, cell

    def texts(self) -> dict[str, list[str]]:
        """Return the cells as text, by the key of the row."""
        return {row.key: self.row_texts(row) for row in self.rows}

    def row_texts(self, row: Row) -> list[str]:
        """Return the shown cells of a row as text, without marks."""
        return [self.columns[j].text(row.cells[j]) for j in self.shown]

    def best(self, j: int) -> frozenset[int]:
        """Return the rows that share the best printed mean of column ``j``.

        Empty for a table of one row and for a table with one trial. A cell with one trial is never marked.
        """
        column = self.columns[j]
        if not column.best or len(self.rows) < 2 or self.trials < 2:
            return frozenset()
        printed = {i: column.rounded(row.cells[j]) for i, row in enumerate(self.rows)}
        known = {i: value for i, value in printed.items() if value is not None}
        if not known or (column.best == "lowest" and len(known) < 2):
            return frozenset()
        best = max(known.values()) if column.best == "highest" else min(known.values())
        return frozenset(i for i, value in known.items() if value == best and not _has_one_trial(self.rows[i].cells[j]))

    def marks(self, j: int, cell: Cell) -> str:
        """Return the marks after a cell of column ``j``: fewer trials than the table, and incomplete means."""
        if not isinstance(cell, Estimate):
            return ""
        fewer = self.columns[j].per_trial and cell.mean is not None and cell.n < self.trials
        return (f" (n={cell.n})" if fewer else "") + (f" {INCOMPLETE}" if cell.incomplete else "")


def _has_one_trial(cell: Cell) -> bool:
    return isinstance(cell, Estimate) and cell.n == 1


# Plain text.


def render_text(table: Table) -> str:
    """Return plain aligned text: the table, its selection rule and its footnotes. Lines are never cut."""
    grid = RichTable(box=HORIZONTALS, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [_text_column(table, j) for j in table.shown]
    if table.row_key:
        columns.insert(0, ["", *(printable(row.label) for row in table.rows)])
    for heading, *_ in columns:
        grid.add_column(Text(heading), no_wrap=True)
    for i, row in enumerate(table.rows):
        if i and row.group != table.rows[i - 1].group:
            grid.add_section()
        grid.add_row(*(Text(cells[i + 1]) for cells in columns))
    out = io.StringIO()
    Console(file=out, width=sys.maxsize, color_system=None, force_terminal=False).print(grid)
    lines = [line[1:].rstrip() for line in out.getvalue().splitlines()]  # without the left border
    width = max(NARROWEST, len(lines[0]))
    notes = [textwrap.fill(printable(note), width) for note in _notes(table)]
    conclusion = [textwrap.fill(printable(text), width, subsequent_indent="  ") for text in table.conclusion]
    ending = [lines[0], "Conclusion", *conclusion] if conclusion else []
    return "\n".join([printable(table.title), *lines, *notes, *ending]) + "\n"


def _text_column(table: Table, j: int) -> list[str]:
    """Heading and cells of a column. Numbers end at the same position, and their marks follow."""
    column, best = table.columns[j], table.best(j)
    texts = [printable(column.heading), *(printable(column.text(row.cells[j])) for row in table.rows)]
    if column.kind == "text":
        return texts
    marks = ["", *("*" * (i in best) + table.marks(j, row.cells[j]) for i, row in enumerate(table.rows))]
    width = max(map(cell_len, texts))
    return [" " * (width - cell_len(text)) + text + mark for text, mark in zip(texts, marks, strict=True)]


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
    headers = list(dict.fromkeys(map(_csv_header, tables)))
    if len(headers) > 1:
        raise UsageError(f"Expected tables with the same columns; found {headers}. Write them to separate files.")
    lines: dict[tuple[object, ...], list[str]] = {}
    for number, table in enumerate(tables):
        for key, line in _csv_lines(table):
            name = key or (number, len(lines))
            if name not in lines or line.count("") < lines[name].count(""):
                lines[name] = line
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([*headers, *lines.values()])
    return out.getvalue()


def _csv_header(table: Table) -> tuple[str, ...]:
    if table.csv_keys:
        return (*table.csv_keys, *(name for name in NUMBERS if all(name in c.fields for c in table.columns)))
    return tuple(name for column in table.columns for name in _csv_names(column))


def _csv_names(column: Column) -> list[str]:
    """Names of a column's values if CSV has one line per row."""
    if column.kind != "estimate":
        return [column.key]
    return [column.csv_prefix + name for name in NUMBERS if name in column.fields]


def _csv_lines(table: Table) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """Key and values of each line; the key is empty if a line has one row."""
    known = {"selection": table.selection.name} if table.selection else {}
    for row in table.rows:
        if not table.csv_keys:
            yield (), [value for column, cell in _pairs(table, row) for value in _csv_values(column, cell)]
            continue
        for column, cell in _pairs(table, row):
            ids = known | {table.row_key: row.key} | dict(column.ids)
            key = tuple(ids[name] for name in table.csv_keys)
            yield key, [*key, *_csv_values(column, cell)]


def _pairs(table: Table, row: Row) -> Iterable[tuple[Column, Cell]]:
    return zip(table.columns, row.cells, strict=True)


def _csv_values(column: Column, cell: Cell) -> list[str]:
    if not isinstance(cell, Estimate):
        return [_csv_number(cell, column)]
    return [_csv_number(getattr(cell, name), column) for name in NUMBERS if name in column.fields]


def _csv_number(value: str | int | float | None, column: Column) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, column.csv_digits) if isinstance(value, float) else str(value)


# JSON.


def render_json(table: Table) -> str:
    """Return a JSON object: title, selection, columns, rows and footnotes. What is undefined is null."""
    content: dict[str, Any] = {"title": table.title}
    if table.selection:
        selection = table.selection
        content["selection"] = {"name": selection.name, "title": selection.title, "rule": selection.rule}
    columns = [table.columns[j] for j in table.shown]
    rows = [{table.columns[j].key: _json_cell(table, row, j) for j in table.shown} for row in table.rows]
    content |= {
        **table.properties,
        "columns": [column.key for column in columns],
        "units": {column.key: column.unit for column in columns if column.unit},
        "rows": dict(zip(table.labels, rows, strict=True)) if table.row_key else rows,
        "footnotes": table.footnotes,
    }
    if meanings := {row.key: row.meaning for row in table.rows if row.meaning}:
        content["meanings"] = meanings
    if table.conclusion:
        content["conclusion"] = " ".join(table.conclusion)
    named = {table.json_names.get(name, name): value for name, value in content.items()}
    return json.dumps(named, indent=1)


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
