"""Reading of tables: CSV and TSV files, and Parquet files, as columns by name."""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pogm._system.errors import DataError, UsageError
from pogm._system.terminal import printable
from pogm.data.tables.encoding import Column

MOST_BYTES = 8 * 2**30  # of a column of texts
PARQUET = (".parquet", ".pq")


def read_table(path: Path) -> dict[str, Column]:
    """Read the columns of a CSV, TSV or Parquet file.

    Raises:
        DataError: The file is damaged or empty, or a row has another number of cells than the header.
    """
    return read_parquet(path) if path.suffix.lower() in PARQUET else read_csv(path)


def read_table_names(path: Path) -> list[str]:
    """Read the names of the columns of a CSV or TSV file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
        return [name.strip() for name in next(csv.reader([first], delimiter=_find_separator(first)), [])]
    except (OSError, csv.Error, UnicodeDecodeError):
        return []


class TableRow(NamedTuple):
    """A row of a CSV file."""

    line: int
    cells: list[str]


def read_rows(path: Path) -> Iterator[TableRow]:
    """Yield the rows of a CSV file, without empty lines; cells are stripped.

    The separator is a comma, a semicolon or a tab.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=_find_separator(first), strict=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield TableRow(reader.line_num, cells)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(
            f"Expected a table in {printable(str(path))}; found: {found}. Save it as CSV in UTF-8, or check the path."
        ) from error


def _find_separator(first_line: str) -> str:
    return max(",;\t", key=first_line.count)


def read_csv(path: Path) -> dict[str, Column]:
    """Read a table with a header, see `read_rows`. Values are texts."""
    rows = list(read_rows(path))
    if len(rows) < 2:
        raise DataError(
            f"Expected a header and rows in {printable(str(path))}; found {len(rows)} lines. Check the file."
        )
    header = rows[0].cells
    _check_names(header, path)
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise DataError(
                f"Expected {len(header)} cells, as in the header, in every line of {printable(str(path))}; found "
                f"{len(cells)} in line {line}. Correct this line."
            )
    columns = zip(*(cells for _, cells in rows[1:]), strict=True)
    return {name: _to_texts(column, name, path) for name, column in zip(header, columns, strict=True)}


def _to_texts(values: Sequence[str], name: str, path: Path) -> Column:
    """Return texts as an array, in which every one takes the memory of the longest."""
    longest = max(map(len, values))
    if 4 * longest * len(values) > MOST_BYTES:
        raise DataError(
            f"Expected short texts in the column {printable(name)} of {printable(str(path))}; found one of {longest} "
            "characters. Shorten it, or leave out the column."
        )
    return np.array(values, dtype=str)


def read_parquet(path: Path) -> dict[str, Column]:
    """Read a Parquet file. Missing values become NaN in columns of numbers and "" in columns of texts."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Expected pyarrow to read Parquet; found none installed. Run: pip install 'pogm[parquet]', or save the "
            "table as CSV."
        ) from error
    try:
        table = pyarrow.parquet.read_table(path)
        names = table.column_names
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # a name that is not UTF-8 is a ValueError
        raise DataError(
            f"Expected a Parquet file at {printable(str(path))}; found: {str(error).splitlines()[0]}. Save it again."
        ) from error
    _check_names(names, path)
    if not table.num_rows:
        raise DataError(f"Expected rows in {printable(str(path))}; found none. Check the file.")
    return {name: _to_numpy(table.column(name), name, path) for name in names}


def _to_numpy(column: Any, name: str, path: Path) -> Column:
    import pyarrow.types

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        numbers = column.to_pylist()
        return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)
    if pyarrow.types.is_boolean(kind):
        return np.array(["" if value is None else str(int(value)) for value in column.to_pylist()], dtype=str)
    try:
        texts = ["" if value is None else str(value) for value in column.to_pylist()]
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a time without a Python value
        raise DataError(
            f"Expected texts in the column {printable(name)} of {printable(str(path))}; found: {error}. Correct it."
        ) from error
    return _to_texts(texts, name, path)


def _check_names(names: Sequence[str], path: Path) -> None:
    repeated = [name or "(empty)" for name, count in Counter(names).items() if count > 1 or not name]
    if repeated:
        raise DataError(
            f"Expected a different name for every column of {printable(str(path))}; found {', '.join(repeated)}. "
            "Rename the columns."
        )
