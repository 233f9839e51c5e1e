"""Any table, or file of arrays, as a dataset without writing Python."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm.core.hyperparameters import hyper
from pogm.data.datasets.array_dataset import (
    Array,
    ArrayWarning,
    InferredDataset,
    SmallArrays,
    find_constant_columns,
    fingerprint,
)
from pogm.data.datasets.base import Domain, Training
from pogm.data.tables.encoding import Encoding, find_encoding
from pogm.data.tables.samples import KINDS, TASKS, SampleFile, find_task, read_samples, sort_names
from pogm.data.transforms.arrays import Columns, Counts, LogMel, Series, TokenCounts
from pogm.data.transforms.base import Transform

LOUDEST = 2.0  # amplitude of audio in floats; filters can lead to a little more than 1
RATE = "rate"  # array of an .npz file with the samples per second of audio


@dataclass(frozen=True)
class ArrayFile(InferredDataset):
    """Your own table, time series, audio or text: a CSV or Parquet file, or arrays in an .npz file.

    The dataset is identified by its content. The path may change; the name of the file may not.

    Input: all other columns of a table; the array x, or sparse counts, of an .npz file.
    Label: the column or array label, y, class or target. Numbers with more than 20 values are targets of a regression.
    Domain: the column or array domain, site, hospital, center, centre, location or environment.
    Licence: yours.
    """

    facts: ClassVar[tuple[str, ...]] = (  # read from the file, not settable
        "title",
        "domains",
        "classes",
        "content",
        "file",
        "columns",
        "numbers",
        "categories",
        "indicators",
        "kind",
        "shape",
        "rate",
        "vocabulary",
        "task",
    )

    title: str = hyper("")  # name of the file without its suffix
    content: str = hyper("")  # fingerprint of the file
    file: str = hyper("")  # name of the file
    columns: tuple[str, ...] = hyper(())  # columns with a role, and columns left out: role, name, role, name, ...
    kind: str = hyper("table", options=KINDS)
    shape: str = hyper("")  # shape of one stored sample, such as 3,128
    rate: int = hyper(0, least=0)  # samples per second of audio
    vocabulary: int = hyper(0, least=0)  # largest token id
    task: str = hyper("classification", options=TASKS)  # type: ignore[misc]

    @classmethod
    def from_path(cls, path: Path, options: Mapping[str, str] | None = None) -> Self:
        """Return the dataset of a file; the whole file is read.

        Args:
            path: CSV, TSV, Parquet or ``.npz`` file.
            options: ``label``, ``domain``, ``group``, ``split``: names of columns; ``drop``: columns to leave out,
                separated by +; ``kind`` of arrays; ``task``.

        Raises:
            DataError: The file is damaged, or its content cannot be used.
            UsageError: An option is unknown.
        """
        options = dict(options or {})
        file = read_samples(path, options)
        task = find_task(file, options.get("task"))
        domains = sort_names(file.texts("domain").tolist())
        if len(domains) < 2:
            raise DataError(
                f"Expected two or more domains in the column {file.roles['domain']} of {file.where}; found "
                f"{', '.join(domains)}. Name another column: {file.where}:domain=COLUMN"
            )
        classes = sort_names(file.texts("label").tolist()) if task == "classification" else ()
        if task == "classification" and len(classes) < 2:
            raise DataError(
                f"Expected two or more classes in the column {file.roles['label']} of {file.where}; found "
                f"{', '.join(classes)}. Name another column: {file.where}:label=COLUMN"
            )
        if file.kind == "table":
            if not file.features:
                raise DataError(
                    f"Expected columns of inputs in {file.where}, besides {', '.join(file.roles.values())}; found none."
                    " Add them."
                )
            encoding = find_encoding(file.features, file.where)
            stored: Any = encoding.encode(file.features, file.where)
        else:
            encoding, stored = Encoding(), file.read_inputs()
        roles = [text for pair in file.roles.items() for text in pair]
        dropped = [text for name in filter(None, options.get("drop", "").split("+")) for text in ("drop", name)]
        return cls(
            title=path.stem,
            domains=domains,
            classes=classes,
            content=fingerprint([path]),
            file=path.name,
            columns=(*roles, *dropped),
            numbers=encoding.numbers,
            categories=encoding.categories,
            indicators=stored.dtype.kind == "f" and bool(np.isnan(stored).any()),
            kind=file.kind,
            shape=",".join(map(str, stored.shape[1:])),
            rate=_find_rate(file) if file.kind == "audio" else 0,
            vocabulary=int(stored.max()) if file.kind == "tokens" else 0,
            task=task,
        )

    @property
    def seed_name(self) -> str:
        """Fingerprint of the content."""
        return self.content

    @property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one stored sample."""
        return tuple(int(size) for size in self.shape.split(",") if size)

    @property
    def training(self) -> Training:  # type: ignore[override]
        """Default settings for the kind of the data."""
        return SmallArrays(network="cnn1d" if self.kind in ("series", "audio") else "mlp")

    def transform(self, training: Training) -> Transform:
        """Return the transform for the kind of the data."""
        if self.kind == "series":
            return Series(self.input_shape)
        if self.kind == "audio":
            return LogMel.build(self.input_shape[0], self.rate)
        if self.kind == "counts":
            return Counts(self.input_shape)
        if self.kind == "tokens":
            return TokenCounts((self.vocabulary,))
        numbers = len(self.numbers) if self.kind == "table" else self.input_shape[0]
        return Columns.build(numbers, len(self.encoding.pairs), indicators=self.indicators)

    def paths(self, root: Path | None) -> list[Path]:
        """Return the path of the file; raise a `DataError` if it is not there."""
        if root is None or not (root / self.file).is_file():
            raise DataError(
                f"Expected {self.file} in the data folder; found {'none given' if root is None else f'none in {root}'}."
                " Pass --data with the folder of the file."
            )
        return [root / self.file]

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; raise a `DataError` if the file is not the one that this dataset was made from."""
        (path,) = self.paths(root)
        if fingerprint([path]) != self.content:
            raise DataError(
                f"Expected the file that this run began with at {path}; found another content. Restore it, name its "
                "folder with --data, or start a new run."
            )
        file = read_samples(path, self.options)
        inputs, names = self.read_inputs(file), file.texts("domain")
        labels = self.read_labels(file)
        groups = _number(file.texts("group")) if "group" in file.roles else None
        splits = None if (found := file.splits()) is None else torch.from_numpy(found)
        rows = [torch.from_numpy(np.flatnonzero(names == domain)) for domain in self.domains]
        return [
            Domain(
                inputs[index],
                labels[index],
                groups=None if groups is None else groups[index],
                splits=None if splits is None else splits[index],
            )
            for index in rows
        ]

    @property
    def options(self) -> dict[str, str]:
        """Options with which the file is read."""
        pairs = list(zip(self.columns[::2], self.columns[1::2], strict=True))
        dropped = "+".join(name for role, name in pairs if role == "drop")
        return {
            **{role: name for role, name in pairs if role != "drop"},
            **({"drop": dropped} if dropped else {}),
            **({"kind": self.kind} if self.kind != "table" else {}),
        }

    def read_inputs(self, file: SampleFile) -> Tensor:
        """Return the stored inputs [N, ...] of a file with the columns, or the shape, of this dataset.

        Raises:
            DataError: A column is missing, or the shape is another.
        """
        if self.kind == "table":
            return torch.from_numpy(self.encoding.encode(file.features, file.where))
        inputs = torch.from_numpy(file.read_inputs())
        if inputs.shape[1:] != self.input_shape:
            raise DataError(
                f"Expected samples of shape {list(self.input_shape)} in {file.where}; found {list(inputs.shape[1:])}. "
                "Make them as for training."
            )
        if self.kind == "tokens" and int(inputs.max()) > self.vocabulary:
            raise DataError(
                f"Expected token ids up to {self.vocabulary} in {file.where}; found {int(inputs.max())}. Use the "
                "vocabulary of the training data."
            )
        if self.kind == "audio":
            self._check_audio(file, inputs)
        return inputs

    def _check_audio(self, file: SampleFile, inputs: Tensor) -> None:
        """Refuse another rate than that of the training; warn of floats that look like 16-bit samples."""
        if RATE in file.columns and (rate := _find_rate(file)) != self.rate:
            raise DataError(
                f"Expected audio with {self.rate} samples per second in {file.where}; found {rate}. Resample it."
            )
        if inputs.is_floating_point() and (largest := float(inputs.abs().max())) > LOUDEST:
            warnings.warn(
                f"Expected audio from -1 to 1 in x of {file.where}, as it is stored in floats; found {largest:g}. "
                "Divide 16-bit samples by 32768, in the data of the training and in those of predictions.",
                ArrayWarning,
                stacklevel=3,
            )

    def read_labels(self, file: SampleFile, rows: Array | slice = slice(None)) -> Tensor:
        """Return the class indices, or the targets of a regression, of a file or of some of its rows.

        Raises:
            DataError: A class is not known, or a target is not a number.
        """
        if self.task == "regression":
            return torch.from_numpy(file.numbers("label")[rows]).float()
        texts = file.texts("label")[rows].tolist()
        numbers = {name: number for number, name in enumerate(self.classes)}
        if unknown := sorted(set(texts) - numbers.keys()):
            raise DataError(
                f"Expected the classes {', '.join(self.classes)} in {file.where}; found {', '.join(unknown)}. Rename "
                "or remove them."
            )
        return torch.tensor([numbers[text] for text in texts])

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Check classes as all arrays do; warn of columns that say nothing in the training domains."""
        super().check(domains, test_domains)
        if self.kind != "table":
            return
        trained = [domain.inputs for number, domain in enumerate(domains) if number not in test_domains]
        is_constant = find_constant_columns(trained)[: len(self.numbers)].tolist()
        if constant := [name for name, found in zip(self.numbers, is_constant, strict=True) if found]:
            warnings.warn(
                f"Expected columns with several values in the training domains; found {', '.join(constant)} constant "
                "or missing there. The network does not see them. A large offset, as in times, also makes a column "
                "constant: subtract it.",
                ArrayWarning,
                stacklevel=2,
            )


def _find_rate(file: SampleFile) -> int:
    """Return the samples per second of audio; raise a `DataError` if the file does not say."""
    if RATE not in file.columns or file.columns[RATE].size != 1:
        raise DataError(
            f"Expected the array {RATE}, one number of samples per second, in {file.where}; found none. Save it beside "
            "x."
        )
    return int(file.columns[RATE])


def _number(texts: Any) -> Tensor:
    """Return the number of each text, in the order of their first occurrence."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(texts.tolist()))}
    return torch.tensor([numbers[text] for text in texts.tolist()])
