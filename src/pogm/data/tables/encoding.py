"""Encoding of tables: columns of texts become columns of numbers, one-hot columns of categories, labels and domains.

Numbers are stored as they are; missing values are NaN. A category becomes one column with 0 or 1. Imputation and
scaling depend on the training domains and are done by the transform `pogm.data.transforms.arrays.Columns`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError

Array = npt.NDArray[Any]
Column = Array  # [N] numbers, or texts; a missing value is NaN or one of MISSING
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")  # texts of missing values, in any case
MOST_CATEGORIES = 100  # of one column
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
MANY_NUMBERS = 20  # a column with more different numbers is not a column of categories


@dataclass(frozen=True)
class Encoding:
    """Columns of a table that are inputs, and how they are encoded. Texts only, so that it can be saved as JSON."""

    numbers: tuple[str, ...] = ()  # names of the columns of numbers
    categories: tuple[str, ...] = ()  # column, value, column, value, ...: one one-hot column for each pair

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Column and value of each one-hot column."""
        return tuple(zip(self.categories[::2], self.categories[1::2], strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that are read."""
        return (*self.numbers, *dict.fromkeys(self.categories[::2]))

    def encode(self, columns: Mapping[str, Column], where: str) -> npt.NDArray[np.float32]:
        """Return the encoded columns [N, numbers + one-hot columns]. A category that is not known has only zeros.

        Args:
            columns: Columns of the table by name.
            where: Name of the table, for errors.

        Raises:
            DataError: A column is missing, or a value is not a number.
        """
        if missing := [name for name in self.names if name not in columns]:
            raise DataError(
                f"Expected the columns {', '.join(self.names)} in {where}; found none named {', '.join(missing)}. "
                "Add them, with an empty value where it is not known."
            )
        numbers = [to_numbers(columns[name], name, where) for name in self.numbers]
        texts = {name: self._texts(columns[name], name) for name in dict.fromkeys(self.categories[::2])}
        one_hot = [(texts[name] == value).astype(np.float32) for name, value in self.pairs]
        return np.stack([*numbers, *one_hot], 1).astype(np.float32)

    def unknown_categories(self, columns: Mapping[str, Column]) -> dict[str, list[str]]:
        """Return the texts of each column of categories that are not among its categories, without missing values."""
        found = {}
        for name in dict.fromkeys(self.categories[::2]):
            texts = set(self._texts(columns[name], name).tolist()) - {*self._known(name), ""}
            if texts:
                found[name] = sorted(texts)
        return found

    def _known(self, name: str) -> list[str]:
        """Return the categories of a column."""
        return [value for column, value in self.pairs if column == name]

    def _texts(self, column: Column, name: str) -> npt.NDArray[np.str_]:
        """Return a column of categories as texts; truth values in the spelling of the categories, such as TRUE."""
        spelling = {text.lower(): text for text in self._known(name)}
        if column.dtype.kind != "b" or not {"true", "false"} & spelling.keys():
            return to_texts(column)
        return np.array([spelling.get(str(value).lower(), str(value)) for value in column.tolist()], dtype=str)


def find_encoding(columns: Mapping[str, Column], where: str) -> Encoding:
    """Return the encoding of a table: columns whose values are all numbers or missing, and columns of categories.

    Raises:
        DataError: A column of texts has more than 100 different values, such as names or ids, or numbers with a decimal
            comma, which would become categories.
    """
    numbers, categories = [], list[str]()
    for name, column in columns.items():
        if is_numeric(column):
            numbers.append(name)
            continue
        texts = to_texts(column)
        values = sorted(set(texts[texts != ""].tolist()))
        commas = [value for value in values if DECIMAL_COMMA.fullmatch(value)]
        if commas and all(value in commas or _is_number(value) for value in values):
            raise DataError(
                f"Expected numbers with a decimal point in the column {name} of {where}; found {commas[0]!r}. Save the "
                f"table with decimal points, or leave the column out with drop={name}."
            )
        if sum(map(_is_number, values)) > MANY_NUMBERS:  # a column of numbers with a few texts among them
            to_numbers(column, name, where)
        if len(values) > MOST_CATEGORIES:
            raise DataError(
                f"Expected numbers, or at most {MOST_CATEGORIES} different texts, in the column {name} of {where}; "
                f"found {len(values)} texts, such as {values[0]!r}. Leave the column out with drop={name}, or correct "
                "it."
            )
        categories += [text for value in values for text in (name, value)]
    return Encoding(tuple(numbers), tuple(categories))


def is_missing(column: Column) -> npt.NDArray[np.bool_]:
    """Return True for each missing value of a column."""
    if column.dtype.kind in "fc":
        return np.isnan(column)
    if column.dtype.kind in "biu":
        return np.zeros(len(column), bool)
    return np.isin(np.char.lower(np.char.strip(column.astype(str))), MISSING)


def is_numeric(column: Column) -> bool:
    """Return True if all values of a column are numbers, also infinite ones, or missing."""
    if column.dtype.kind in "biuf":
        return True
    return all(_is_number(value) for value in set(column[~is_missing(column)].tolist()))


def _is_number(value: Any) -> bool:
    """Return True for a number, or its text. Python and NumPy would also read the code 1_2 as 12."""
    try:
        float(value)
    except ValueError:
        return False
    return "_" not in str(value)


def to_numbers(column: Column, name: str, where: str) -> npt.NDArray[np.float64]:
    """Return a column as numbers, with NaN for missing values.

    Raises:
        DataError: A value is not a finite number, or too large for float32; the error names the column and the row.
    """
    missing = is_missing(column)
    if column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
    else:
        if not is_numeric(column):
            bad = [row for row in np.flatnonzero(~missing).tolist() if not _is_number(column[row])]
            raise _number_error(column, name, where, bad)
        numbers = np.full(len(column), np.nan)
        numbers[~missing] = column[~missing].astype(np.float64)
    if large := np.flatnonzero(np.abs(numbers) > np.finfo(np.float32).max).tolist():  # or infinite
        raise _number_error(column, name, where, large)
    return numbers


def _number_error(column: Column, name: str, where: str, rows: Sequence[int]) -> DataError:
    more = f" and {len(rows) - 1} more rows" if len(rows) > 1 else ""
    text = str(column[rows[0]])
    large = ", too large for float32," if _is_number(text) and math.isfinite(float(text)) else ""
    return DataError(
        f"Expected finite numbers in the column {name} of {where}; found {text!r}{large} in row "
        f"{rows[0] + 1}{more}. Correct it, or leave the value empty if it is not known."
    )


def to_texts(column: Column) -> npt.NDArray[np.str_]:
    """Return a column as texts: whole numbers without ".0", and "" for missing values."""
    if column.dtype.kind in "biuf":
        numbers = column.tolist()
        texts = [str(int(n)) if n == n and float(n).is_integer() else str(n) for n in numbers]
    else:
        texts = [str(text).strip() for text in column.tolist()]
    return np.where(is_missing(column), "", np.array(texts, dtype=str))
