"""HeartDisease: diagnoses of four hospitals, with many missing values (Detrano et al., 1989)."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from pogm._system.errors import DataError
from pogm.data.datasets.array_dataset import ArrayDataset, SmallArrays
from pogm.data.datasets.base import Domain, Training
from pogm.data.tables.encoding import Encoding
from pogm.data.tables.reading import read_csv
from pogm.data.transforms.arrays import Columns
from pogm.data.transforms.base import Transform

ENCODING = Encoding(
    numbers=("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca"),
    categories=tuple(
        text
        for name, values in (("cp", "1234"), ("restecg", "012"), ("slope", "123"), ("thal", "367"))
        for value in values
        for text in (name, value)
    ),
)
POSITIVE = ("trestbps", "chol")  # 0 is a missing value in these columns
MOST_VESSELS = 3  # largest value of ca


class HeartDisease(ArrayDataset):
    """Heart disease of patients of four hospitals.

    Input: 13 columns of the UCI repository: age, sex, chest pain, blood pressure, cholesterol, and results of tests.
    Four columns are one-hot. Missing values are "?" and -9, and 0 for blood pressure and cholesterol.
    Label: 1 if a vessel is narrowed by more than half (num above 0), else 0.
    Domain: the hospital.
    Samples: 303, 294, 123, 200.
    Paper: Detrano et al., International application of a new probability algorithm, Am. J. Cardiol. 1989.
    Licence: CC BY 4.0 (UCI).
    """

    domains = ("cleveland", "hungarian", "switzerland", "va")
    num_classes = 2
    input_shape = (len(ENCODING.numbers) + len(ENCODING.pairs),)
    folder = "heart"
    files = tuple(f"{name}.csv" for name in domains)
    training: ClassVar[Training] = SmallArrays(weight_decay=1e-3)
    steps = 201
    evaluate_every = 20

    encoding: ClassVar[Encoding] = ENCODING

    def transform(self, training: Training) -> Transform:
        """Return imputed and standardised columns, with indicators of missing values."""
        return Columns.build(len(ENCODING.numbers), len(ENCODING.pairs), indicators=True)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all hospitals."""
        return [_read_hospital(path) for path in self.paths(root)]


def _read_hospital(path: Path) -> Domain:
    cells = {name: column.tolist() for name, column in read_csv(path).items()}
    first = _undo_renaming([column[0] for column in cells.values()])
    for column, text in zip(cells.values(), first, strict=True):
        column[0] = text
    columns = {name: np.array([_clean(name, text) for text in column], dtype=str) for name, column in cells.items()}
    if "num" not in columns:
        raise DataError(f"Expected the column num in {path}; found {', '.join(columns)}. Copy the published file.")
    if unknown := sorted(set(columns["num"].tolist()) - {*"01234"}):
        raise DataError(f"Expected 0 to 4 in the column num of {path}; found {unknown[0]!r}. Copy the file again.")
    inputs = ENCODING.encode(columns, str(path))
    return Domain(torch.from_numpy(inputs), torch.from_numpy((columns["num"] != "0").astype(np.int64)))


def _clean(name: str, text: str) -> str:
    """Return a number in its shortest form, such as "3" for "3.0", and "" for a missing or impossible value."""
    try:
        number = float(text)
    except ValueError:
        return "" if text == "?" else text
    is_unknown = number == -9 or (name in POSITIVE and number == 0) or (name == "ca" and number > MOST_VESSELS)
    return "" if is_unknown else f"{number:g}"


def _undo_renaming(row: list[str]) -> list[str]:
    """Return the first row of a file that was published without a header.

    Some copies of the hungarian file were read by pandas with the first patient as the header, which renames repeated
    values: 0, 0, 0 became 0, 0.1, 0.2. Such a row has no value twice.
    """
    if len(set(row)) < len(row):
        return row
    found: list[str] = []
    for text in row:
        original, _, number = text.rpartition(".")
        is_renamed = number.isdecimal() and int(number) == found.count(original) > 0
        found.append(original if is_renamed else text)
    return found
