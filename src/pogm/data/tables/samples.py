"""Samples of a file of arrays or of a table: inputs, labels, domains, groups and splits, read and checked.

A CSV, TSV or Parquet file has one row per sample. An ``.npz`` file has the arrays ``x``, ``y`` and ``domain``, and may
have ``group`` and ``split``; sparse counts have ``data``, ``indices``, ``indptr`` and ``shape`` instead of ``x``.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError, UsageError, unknown_name_error
from pogm._system.terminal import printable
from pogm.data.dataset_paths import is_table
from pogm.data.images.metadata import SPLIT_OF, SPLITS, USUAL
from pogm.data.tables.arrays import CSR, check_sparse, densify, read_arrays
from pogm.data.tables.encoding import Column, is_missing, is_numeric, to_numbers, to_texts
from pogm.data.tables.reading import PARQUET, read_table, read_table_names

Array = npt.NDArray[Any]
ARRAYS = (".npz",)
KINDS = ("table", "vectors", "series", "audio", "counts", "tokens")
TASKS = ("classification", "regression")
REQUIRED = ("label", "domain")
ROLES = (*REQUIRED, "group", "split")
INPUTS = ("x", "X", "inputs")  # names of the array of inputs in an .npz file
FEW_VALUES = 20  # a column of numbers with more different values is the target of a regression
AXES = {"vectors": 1, "series": 2, "audio": 1, "tokens": 1}  # of one sample of an .npz file, by kind


def is_array_file(path: Path, options: Mapping[str, str] | None = None) -> bool:
    """Return True if a file holds samples, and not images or the paths of images.

    A CSV or TSV file with a column of paths is a metadata file of images, unless the option kind=table is given.
    """
    name = str(path).lower()
    if name.endswith((*ARRAYS, *PARQUET)):
        return True
    if not is_table(path) or not path.is_file():
        return False
    options = options or {}
    if "kind" in options or "task" in options or "drop" in options:
        return True
    if "path" in options or "classes" in options:
        return False
    names = read_table_names(path)
    return bool(names) and not set(USUAL["path"]) & set(names)


@dataclass(frozen=True)
class SampleFile:
    """A file of samples as it was read: columns of a table, or arrays."""

    path: Path
    kind: str  # one of KINDS
    columns: Mapping[str, Column]  # columns or arrays by name
    roles: Mapping[str, str]  # name of the column of each role: label, domain, group, split

    @property
    def where(self) -> str:
        """Name of the file, for errors."""
        return printable(self.path.name)

    @property
    def count(self) -> int:
        """Number of samples."""
        if self.kind == "table":
            return len(next(iter(self.columns.values())))
        return len(self.columns["indptr"]) - 1 if self.is_sparse else len(self.inputs)

    @property
    def is_sparse(self) -> bool:
        """True if the inputs are a sparse matrix."""
        return all(name in self.columns for name in CSR)

    @property
    def features(self) -> dict[str, Column]:
        """Columns of a table that have no role."""
        return {name: column for name, column in self.columns.items() if name not in self.roles.values()}

    @property
    def inputs(self) -> Array:
        """Array of the inputs of an ``.npz`` file."""
        return self.columns[next(name for name in INPUTS if name in self.columns)]

    def read_inputs(self) -> Array:
        """Return the inputs [N, ...] of an ``.npz`` file in the dtype in which they are stored.

        Raises:
            DataError: Their shape, dtype or values do not fit the kind of the file.
        """
        if self.is_sparse:
            x = densify(dict(self.columns), self.path)
        else:
            x = self.inputs
            self._check_shape(x)
        self._check_values(x)
        if x.dtype.kind == "f":
            return x.astype(np.float32)
        if x.dtype == np.uint8 or (self.kind == "audio" and x.dtype == np.int16):
            return x
        largest = int(np.abs(x.astype(np.int64)).max(initial=0))
        if self.kind == "tokens":
            return x.astype(np.int16 if largest < 2**15 else np.int32)
        return x.astype(np.float32)

    def _check_shape(self, x: Array) -> None:
        axes = AXES.get(self.kind, 1)
        if x.dtype.kind not in ("iub" if self.kind == "tokens" else "fiub"):
            wanted = "whole numbers (token ids)" if self.kind == "tokens" else "numbers"
            raise DataError(f"Expected {wanted} in x of {self.where}; found {x.dtype}. Convert the array.")
        if self.kind == "audio" and x.dtype.kind != "f" and x.dtype != np.int16:
            raise DataError(
                f"Expected audio as int16, or as floats from -1 to 1, in x of {self.where}; found {x.dtype}. Convert "
                "the array."
            )
        if x.ndim != axes + 1 or 0 in x.shape:
            wanted = {1: "[N, features]", 2: "[N, channels, length]"}[axes]
            raise DataError(
                f"Expected x of shape {wanted} for {self.kind} in {self.where}; found {list(x.shape)}. Reshape the "
                f"array, or name its kind after the path: {self.where}:kind={'|'.join(AXES)}"
            )

    def _check_values(self, x: Array) -> None:
        if self.kind in ("tokens", "counts") and x.size and x.min() < 0:
            row = int(np.flatnonzero((x < 0).any(1))[0])
            raise DataError(
                f"Expected {'token ids' if self.kind == 'tokens' else 'counts'} of at least 0 in {self.where}; found "
                f"{x.min()} in row {row + 1}. The id 0 is padding."
            )
        if x.dtype.kind == "f":
            bad = np.abs(x) > np.finfo(np.float32).max  # or infinite
            if self.kind != "vectors":  # whose missing values are imputed
                bad |= np.isnan(x)
            if bad.any():
                position = np.argwhere(bad)[0].tolist()
                found = x[tuple(position)]
                place = ", ".join(map(str, position[1:]))
                raise DataError(
                    f"Expected finite numbers of float32 in x of {self.where}; found {found} in row "
                    f"{position[0] + 1} at [{place}] and {int(bad.sum())} such values in all. Remove these rows, or "
                    "replace the values."
                )

    def texts(self, role: str) -> npt.NDArray[np.str_]:
        """Return the column of a role as texts; raise a `DataError` if a value is missing."""
        name = self.roles[role]
        column = self._column(name)
        if (rows := np.flatnonzero(is_missing(column))).size:
            text = "" if column.dtype.kind == "f" else str(column[rows[0]])
            found = f"{printable(text)!r}, which means a missing value," if text else "none"
            advice = "write another name" if text else "fill in the values"
            raise DataError(
                f"Expected a value of {name} in every row of {self.where}; found {found} in row {rows[0] + 1} and in "
                f"{rows.size} rows in all. Remove these rows, or {advice}."
            )
        return to_texts(column)

    def numbers(self, role: str) -> npt.NDArray[np.float64]:
        """Return the column of a role as numbers; raise a `DataError` if a value is missing or not a number."""
        self.texts(role)
        return to_numbers(self._column(self.roles[role]), self.roles[role], self.where)

    def splits(self) -> npt.NDArray[np.int64] | None:
        """Return the given split of each sample as its number: train 0, val 1, test 2; None if there are none."""
        if "split" not in self.roles:
            return None
        texts = [text.lower() for text in self.texts("split").tolist()]
        if unknown := sorted(set(texts) - SPLIT_OF.keys()):
            raise DataError(
                f"Expected train, val or test in the column {self.roles['split']} of {self.where}; found "
                f"{printable(unknown[0])!r}. Correct it."
            )
        return np.array([list(SPLITS).index(SPLIT_OF[text]) for text in texts])

    def _column(self, name: str) -> Column:
        column = self.columns[name]
        if column.ndim != 1 or len(column) != self.count:
            raise DataError(
                f"Expected one value of {name} for each of {self.count} samples in {self.where}; found the shape "
                f"{list(column.shape)}. Correct the array."
            )
        return column


def read_samples(path: Path, options: Mapping[str, str]) -> SampleFile:
    """Read a file of samples.

    Args:
        path: CSV, TSV, Parquet or ``.npz`` file.
        options: Columns of roles, ``drop`` (names of columns to leave out, separated by +), and ``kind`` of an
            ``.npz`` file.

    Raises:
        DataError: The file is damaged, or a column is missing.
        UsageError: An option is unknown or does not fit the file.
    """
    columns = read_columns(path, options)
    kind = _find_kind(columns, options, path) if str(path).lower().endswith(ARRAYS) else "table"
    return SampleFile(path, kind, columns, find_roles(columns, options, path))


def read_columns(path: Path, options: Mapping[str, str]) -> dict[str, Column]:
    """Read the columns of a table, or the arrays of an ``.npz`` file, without those of the option ``drop``."""
    columns: dict[str, Column] = read_arrays(path) if str(path).lower().endswith(ARRAYS) else read_table(path)
    for name in filter(None, options.get("drop", "").split("+")):
        if name not in columns:
            raise unknown_name_error(f"a column of {printable(path.name)}", name, columns)
        del columns[name]
    return columns


def find_roles(columns: Mapping[str, Column], options: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the name of the column of each role: the given one, or a usual one. Label and domain must be there.

    Raises:
        DataError: A given or required column is missing, or several columns have usual names.
    """
    found: dict[str, str] = {}
    for role in ROLES:
        usual = [name for name in USUAL[role] if name in columns]
        present = [options[role]] if role in options else usual[:1] if role in usual else usual
        present = [name for name in present if name in columns]
        if len(present) == 1:
            found[role] = present[0]
        elif role in options or role in REQUIRED:
            listed = f"the columns {', '.join(map(printable, columns))}"
            several = f"several: {', '.join(present)}" if present else listed
            near = difflib.get_close_matches(options.get(role, ""), columns, n=1)
            hint = f"Did you mean {printable(near[0])!r}? " if near and not present else ""
            raise DataError(
                f"Expected one column {options.get(role, role)!r} in {printable(str(path))}; found {several}. {hint}"
                f"Add it, or name the column after the path: {printable(path.name)}:{role}=COLUMN"
            )
    if len(set(found.values())) < len(found):
        raise UsageError(
            f"Expected different columns for {', '.join(found)}; found {', '.join(found.values())}. Name other columns."
        )
    return found


def _find_kind(arrays: Mapping[str, Column], options: Mapping[str, str], path: Path) -> str:
    """Return the kind of an ``.npz`` file: the given one, or that of the shape and dtype of x."""
    kind = options.get("kind")
    if kind is not None and kind not in KINDS[1:]:
        raise unknown_name_error("a kind of arrays", kind, KINDS[1:])
    if all(name in arrays for name in CSR):
        check_sparse(arrays, path)
        return "counts"
    names = [name for name in INPUTS if name in arrays]
    if not names:
        raise DataError(
            f"Expected the array x, or {', '.join(CSR)} of sparse counts, in {printable(str(path))}; found "
            f"{', '.join(arrays) or 'none'}. Save the inputs as x."
        )
    x = arrays[names[0]]
    if x.ndim == 0:
        raise DataError(f"Expected samples in x of {printable(path.name)}; found one number. Save an array [N, ...].")
    return kind or ("series" if x.ndim == 3 else "vectors")


def find_task(file: SampleFile, given: str | None) -> str:
    """Return the task: the given one; regression if the label is a number with more than 20 different values.

    Texts in an ``.npz`` file are names of classes, even if they are the digits of numbers.

    Raises:
        UsageError: The given task is unknown.
    """
    if given is not None:
        if given not in TASKS:
            raise unknown_name_error("a task", given, TASKS)
        return given
    column = file.columns[file.roles["label"]]
    are_names = file.kind != "table" and column.dtype.kind == "U"
    many = column.ndim == 1 and is_numeric(column) and len(set(column.tolist())) > FEW_VALUES
    return "regression" if many and not are_names else "classification"


def sort_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return different texts in order: by value if all are numbers, else alphabetically."""
    names = sorted(set(texts))
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(names)
