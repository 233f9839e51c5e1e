"""Published tables as data for an audit: from CSV files, and those of the paper and of DomainBed."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError
from pogm.benchmark.results.accuracy_tables import ALL_DATASETS, AVERAGE
from pogm.benchmark.results.published import ABLATED, RANKS, Result, find_publication, rows
from pogm.benchmark.results.selection import TEST_DOMAIN

MEAN = "avg"
MARKS = ("best", "second", "below_erm")
RULES = ("training-domain", "test-domain", "leave-one-domain-out")
NOT_DATASETS = ("year", "selection", "model_selection", MEAN, *RANKS.values())
LONG = {"dataset", "value"}  # columns of a file with one line per cell
METHODS = ("algorithm", "method", "variant", "model")
EMPTY = ("-", "–", "—")  # cells without a value, as tables print them


class Value(NamedTuple):
    """A printed mean with its standard error, as texts, so that the number of digits is known."""

    mean: str
    stderr: str = ""

    def __str__(self) -> str:
        return f"{self.mean} ± {self.stderr}" if self.stderr else self.mean


@dataclass(frozen=True)
class Row:
    """A row of a published table."""

    method: str
    cells: Mapping[str, Value]  # by dataset
    mean: str = ""  # printed average over datasets
    ranks: Mapping[str, str] = field(default_factory=dict)  # printed, by the names of `SUMMARIES`
    marks: Mapping[str, str] = field(default_factory=dict)  # one of `MARKS`, by dataset


@dataclass(frozen=True)
class PublishedTable:
    """Rows of one table, under one model selection."""

    title: str
    rows: tuple[Row, ...]
    selection: str = ""  # stated rule; empty if it is unknown
    datasets: tuple[str, ...] = ()


def make_table(title: str, found: Iterable[Row], selection: str = "") -> PublishedTable:
    """Return a table; its datasets are those of its rows."""
    found = tuple(found)
    return PublishedTable(title, found, selection, tuple(dict.fromkeys(name for row in found for name in row.cells)))


def read_table(path: Path, selection: str = "") -> list[PublishedTable]:
    """Read the tables of a CSV file, one for each value of its column ``selection``.

    Args:
        path: A file with one row per method (``algorithm,PACS,PACS_stderr,PACS_mark,avg,rank_arith_mean``), or with one
            line per cell (``algorithm,dataset,value,stderr,mark``).
        selection: Model selection of the whole file, if it has no column for it.

    Raises:
        DataError: If the file cannot be read or has another form.
    """
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
        header = list(reader.fieldnames or ())
        reader.fieldnames = names = [_standard_name(name) for name in header]
        lines = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"Expected a CSV file at {path}; found: {reason}. Check the path and the file.") from error
    if not lines or any(None in line or None in line.values() for line in lines):
        raise DataError(
            f"Expected a header and lines of the same length in {path}; found an empty file or a line of another "
            "length. Correct the file."
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"Expected each column once in {path}; found several of {', '.join(repeated)}. Rename one.")
    groups: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        stated = line.get("selection") or line.get("model_selection") or selection
        if stated not in ("", *RULES):
            rules = ", ".join(RULES)
            raise DataError(f"Expected {rules} as selection in {path}; found {stated!r}. Write one of these.")
        cells = {name: (text or "").strip() for name, text in line.items()}
        groups.setdefault(stated, []).append({name: "" if text in EMPTY else text for name, text in cells.items()})
    if len(missing := LONG - set(names)) == 1:
        (there,) = LONG - missing
        raise DataError(
            f"Expected a column {missing.pop()} beside the column {there} in {path}; found {', '.join(header)}. Rename "
            "the column that has this content."
        )
    read = _read_long if set(names) >= LONG else _read_wide
    return [make_table(path.name, read(group, path), stated) for stated, group in groups.items()]


def _standard_name(column: str) -> str:
    """Return the name of a column that is not a dataset in its standard form: "Avg", "average" and "Mean" are "avg"."""
    folded = column.strip().casefold()
    if folded in ("average", "mean"):
        return MEAN
    return folded if folded in {*METHODS, *NOT_DATASETS, *LONG, "stderr", "mark"} else column


def _read_wide(lines: Sequence[Mapping[str, str]], path: Path) -> list[Row]:
    method = _method_column(lines, path)
    columns = [name for name in lines[0] if name != method]
    if not (datasets := _dataset_columns(lines, columns)):
        raise DataError(f"Expected columns of numbers in {path}; found {', '.join(columns)}. See: pogm audit --help")
    if repeated := [name for name, count in Counter(line[method] for line in lines).items() if count > 1]:
        raise DataError(
            f"Expected one line for each method in {path}; found several of {repeated[0]}. Give each one a name of its "
            "own."
        )
    return [
        Row(
            line[method],
            {d: Value(_number(line[d], path), _optional(line, f"{d}_stderr", path)) for d in datasets if line[d]},
            _optional(line, MEAN, path),
            {name: _number(line[column], path) for name, column in RANKS.items() if line.get(column)},
            {d: _mark(line[f"{d}_mark"], path) for d in datasets if line.get(f"{d}_mark")},
        )
        for line in lines
    ]


def _dataset_columns(lines: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """Return the columns with a standard error or a mark, and other columns with numbers. Cells may be empty."""
    others = {f"{name}_{kind}" for name in columns for kind in ("stderr", "mark")} | {*NOT_DATASETS}

    def is_dataset(name: str) -> bool:
        marked = f"{name}_stderr" in columns or f"{name}_mark" in columns
        return marked or any(_is_number(line[name]) for line in lines)

    return [name for name in columns if name not in others and is_dataset(name)]


def _method_column(lines: Sequence[Mapping[str, str]], path: Path) -> str:
    method = next((name for name in METHODS if name in lines[0]), None)
    if method is None:
        raise DataError(f"Expected a column {' or '.join(METHODS)} in {path}; found {', '.join(lines[0])}. Add one.")
    return method


def _read_long(lines: Sequence[Mapping[str, str]], path: Path) -> list[Row]:
    method = _method_column(lines, path)
    by_method: dict[str, list[Mapping[str, str]]] = {}
    for line in lines:
        by_method.setdefault(line[method], []).append(line)
    found = []
    for name, own in by_method.items():
        if repeated := [dataset for dataset, n in Counter(line["dataset"] for line in own).items() if n > 1]:
            raise DataError(
                f"Expected one line for each method and dataset in {path}; found several of {name} on {repeated[0]}. "
                "Give each one a name of its own."
            )
        cells = {line["dataset"]: Value(_number(line["value"], path), _optional(line, "stderr", path)) for line in own}
        averages = {MEAN, AVERAGE, ALL_DATASETS}
        mean = next((cells[dataset].mean for dataset in cells if dataset in averages), "")
        marks = {line["dataset"]: _mark(line["mark"], path) for line in own if line.get("mark")}
        found.append(Row(name, {d: v for d, v in cells.items() if d not in averages}, mean, {}, marks))
    return found


def _number(text: str, path: Path) -> str:
    if not _is_number(text) or not 0 <= float(text) <= 100:
        raise DataError(
            f"Expected numbers in percent in {path}, from 0 to 100; found {text!r}. Put ± into a column of its own, "
            "and leave out columns that are not accuracies."
        )
    return text


def _optional(line: Mapping[str, str], column: str, path: Path) -> str:
    """Return a number that may be missing."""
    return _number(line[column], path) if line.get(column) else ""


def _mark(text: str, path: Path) -> str:
    if text not in MARKS:
        raise DataError(f"Expected {', '.join(MARKS)} as mark in {path}; found {text!r}. Write one of these.")
    return text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", text, re.ASCII) is not None


def paper_tables() -> list[PublishedTable]:
    """Return the five tables of the paper as printed. Tables 3 to 5 have one table for each model selection."""
    marks: dict[str, dict[str, str]] = {}
    for line in rows("paper_table1_marks"):
        marks.setdefault(line["algorithm"], {})[line["dataset"]] = line["mark"]
    names = [column.removesuffix("_stderr") for column in rows("paper_table1")[0] if column.endswith("_stderr")]
    first = [
        Row(
            line["algorithm"],
            {name: Value(line[name], line[f"{name}_stderr"]) for name in names},
            line[MEAN],
            {name: line[column] for name, column in RANKS.items()},
            marks.get(line["algorithm"], {}),
        )
        for line in rows("paper_table1")
    ]
    second: dict[str, dict[str, Value]] = {}
    for line in rows("paper_table2"):
        second.setdefault(line["variant"], {})[line["dataset_as_printed"]] = Value(line["value"], line["stderr"])
    tables = [
        make_table("Table 1", first, TEST_DOMAIN.name),
        make_table("Table 2", (Row(name, cells) for name, cells in second.items()), TEST_DOMAIN.name),
    ]
    for number in (3, 4, 5):
        parts: dict[str, dict[str, dict[str, Value]]] = {}
        for line in rows(f"paper_table{number}"):
            setting = f"POGM, {ABLATED[line['param']]} = {float(line['param_value']):g}"
            cells = parts.setdefault(line["model_selection"], {}).setdefault(setting, {})
            cells[line["dataset"]] = Value(line["value"], line["stderr"])
        for selection, settings in parts.items():
            found = [Row(name, cells, mean=cells.pop(AVERAGE).mean) for name, cells in settings.items()]
            tables.append(make_table(f"Table {number}, {selection}", found, selection))
    return tables


def reference_tables(name: str) -> list[PublishedTable]:
    """Return the means over domains of an embedded publication: one table for each model selection."""
    source = find_publication(name)
    by_selection: dict[str, dict[str, dict[str, Value]]] = {}
    for result in source.results:
        if result.domain == AVERAGE and result.dataset != ALL_DATASETS and not result.algorithm.startswith("Official"):
            cells = by_selection.setdefault(result.selection, {}).setdefault(result.algorithm, {})
            cells[result.dataset] = _value(result)
    return [
        make_table(source.title, (Row(method, cells) for method, cells in found.items()), selection)
        for selection, found in by_selection.items()
    ]


def _value(result: Result) -> Value:
    return Value(f"{result.mean:g}", "" if result.stderr is None else f"{result.stderr:g}")
