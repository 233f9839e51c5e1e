"""The structure of every result table: columns, rows and footnotes. A cell is a text, a number or an `Estimate`.

To add a column, add a `Column` and its cells where the table is built. The renderers for text, CSV, JSON and LaTeX in
`table_formats.py` and the renderer for HTML in `pogm.report.page` read only the structure.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pogm.benchmark.results.selection import Selection
from pogm.benchmark.results.statistics import mean_of

FIELDS = ("mean", "stderr", "n", "reason", "incomplete")
NUMBERS = ("mean", "stderr", "n")  # the fields that CSV has
INCOMPLETE = "†"
TEST_IMAGES = "Test samples"  # label of the last row


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
    test_images: int | None = None  # number of images behind each of its accuracies; None if it is unknown

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
    meaning: str = ""  # meaning of the row, shown as a note
    group: str = ""  # text has a line between groups

    @property
    def label(self) -> str:
        return self.title or self.key

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The cells that are estimates."""
        return tuple(cell for cell in self.cells if isinstance(cell, Estimate))


class Tabular:
    """Base class of everything that can be shown as a table.

    The renderers are imported when they are called, because their module imports this one.
    """

    def table(self) -> "Table":
        """Return the table to show."""
        raise NotImplementedError

    def text(self) -> str:
        """Return plain aligned text for a terminal or a log."""
        from pogm.benchmark.results.table_formats import render_text

        return render_text(self.table())

    def csv(self) -> str:
        """Return CSV with a header."""
        from pogm.benchmark.results.table_formats import tables_csv

        return tables_csv([self.table()])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object with all digits, as a dictionary."""
        from pogm.benchmark.results.table_formats import table_dict

        return table_dict(self.table())

    def json(self) -> str:
        """Return a JSON object with all digits, as text."""
        return json.dumps(self.to_dict(), indent=1)

    def latex(self) -> str:
        """Return a tabular for the LaTeX package booktabs."""
        from pogm.benchmark.results.table_formats import render_latex

        return render_latex(self.table())


@dataclass(frozen=True)
class Table(Tabular):
    """Rows and columns of results, under one model selection, with footnotes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    selection: Selection | None = None  # how the models were selected; None: no model was selected
    footnotes: tuple[str, ...] = ()
    row_key: str = ""  # name of the keys of the rows, such as "algorithm"; empty if the rows have no keys
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
    def test_images(self) -> tuple[int | None, ...]:
        """Number of test images of each shown column; empty if none is known. Shown as the last row."""
        found = tuple(self.columns[j].test_images for j in self.shown)
        return found if self.row_key and any(number is not None for number in found) else ()

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
        cells = {i: self.rows[i].cells[j] for i, value in known.items() if value == best}
        return frozenset(i for i, cell in cells.items() if not (isinstance(cell, Estimate) and cell.n == 1))

    def marks(self, j: int, cell: Cell) -> str:
        """Return the marks after a cell of column ``j``: fewer trials than the table, and incomplete means."""
        if not isinstance(cell, Estimate):
            return ""
        fewer = self.columns[j].per_trial and cell.mean is not None and cell.n < self.trials
        return (f" (n={cell.n})" if fewer else "") + (f" {INCOMPLETE}" if cell.incomplete else "")
