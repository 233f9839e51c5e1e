"""Base classes and training settings of datasets that are not images: tables, time series, audio and text."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm._system.files import digest
from pogm._system.terminal import printable
from pogm.core.hyperparameters import MOST_SAMPLES, Power, hyper
from pogm.data.datasets.base import Domain, DomainDataset, Training, find_unseen
from pogm.data.tables.encoding import Encoding
from pogm.data.transforms.arrays import CHUNK, CONSTANT

Array = npt.NDArray[Any]
LISTED = 10  # categories that a warning names


class ArrayWarning(UserWarning):
    """Data that can be used, but that are probably not what the user expects."""


@dataclass(frozen=True)
class SmallArrays(Training):
    """Settings of small networks on vectors, time series and counts, which train in seconds on a CPU."""

    network: str = hyper("mlp")  # name of the network: mlp or cnn1d
    lr: float = hyper(1e-3, Power(10, -4, -2), above=0)  # learning rate
    weight_decay: float = hyper(0.0, Power(10, -6, -2), least=0)  # L2 penalty of the optimizer
    batch_size: int = hyper(
        32, Power(2, 3, 7, integer=True), least=1, most=MOST_SAMPLES
    )  # samples of each domain in a minibatch


@dataclass(frozen=True)
class ArrayDataset(DomainDataset):
    """Base class of datasets that are not images. A subclass names its files and implements `load` and `transform`."""

    abstract: ClassVar[bool] = True  # a base class; not registered

    folder: ClassVar[str]  # name of the dataset's folder in the data folder
    files: ClassVar[tuple[str, ...]]  # names of the published files in this folder
    training: ClassVar[Training] = SmallArrays()
    steps: ClassVar[int] = 301
    evaluate_every: ClassVar[int] = 30
    uses_seed: ClassVar[bool] = False

    def paths(self, root: Path | None) -> list[Path]:
        """Return the paths of the files; raise a `DataError` if one is missing."""
        if root is None:
            raise DataError(
                f"Expected a folder of data with {self.folder}/, the files of {self.title}; found none given. Pass "
                "--data FOLDER or set POGM_DATA."
            )
        paths = [root / self.folder / file for file in self.files]
        if missing := [path for path in paths if not path.is_file()]:
            raise DataError(
                f"Expected {missing[0].name} in {missing[0].parent}; found none. Pass another --data, or: "
                f"{self.how_to_get}"
            )
        return paths

    @property
    def how_to_get(self) -> str:
        """Advice for missing files."""
        return f"copy {', '.join(self.files)} to <data folder>/{self.folder}"

    def prepare(self, root: Path | None, progress: Any) -> None:
        """Check that the files exist."""
        self.paths(root)

    def describe_data(self, root: Path | None) -> dict[str, Any]:
        """Return the fingerprint of the files."""
        return {"content": fingerprint(self.paths(root))}

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Refuse classes of a test domain that no training domain has; warn of domains with one class or target."""
        if domains[0].labels.is_floating_point():
            self._warn_of_equal_targets(domains)
            return
        for number, unseen in find_unseen(domains, test_domains).items():
            names = ", ".join(self.label_names[label] for label in unseen)
            raise DataError(
                f"Expected every class of the test domain {self.domains[number]} in some training domain; found none "
                f"with samples of class {names}. Remove those samples, or hold out another domain."
            )
        for number, domain in enumerate(domains):
            found = set(domain.labels.tolist())
            if len(found) == 1 and number not in test_domains:
                warnings.warn(
                    f"Expected several classes in every training domain; found only {self.label_names[min(found)]} in "
                    f"{self.domains[number]}. A network can learn the domain instead of the class there.",
                    ArrayWarning,
                    stacklevel=2,
                )

    def _warn_of_equal_targets(self, domains: Sequence[Domain]) -> None:
        targets = {name: domain.labels for name, domain in zip(self.domains, domains, strict=True)}
        if equal := [f"{float(y[0]):g} in {name}" for name, y in targets.items() if bool((y == y[0]).all())]:
            warnings.warn(
                f"Expected different targets in every domain; found only {', '.join(equal)}. R² is undefined there: "
                "the selection of a step and the forecast do without it. Remove the domain if the number stands for a "
                "missing value.",
                ArrayWarning,
                stacklevel=3,
            )

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""
        return tuple(map(str, range(self.num_classes)))

    def class_names(self, root: Path | None) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.label_names


@dataclass(frozen=True)
class InferredDataset(ArrayDataset):
    """Base class of a user's own data, whose domains, classes and columns are read from the data."""

    abstract: ClassVar[bool] = True  # a base class; not registered

    domains: tuple[str, ...] = hyper(())  # type: ignore[misc]
    classes: tuple[str, ...] = hyper(())  # empty for a regression
    numbers: tuple[str, ...] = hyper(())  # columns of numbers of a table
    categories: tuple[str, ...] = hyper(())  # one-hot columns of a table: column, value, column, value, ...
    indicators: bool = hyper(False)  # True if there are indicators of missing values

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes, or 1 for a regression."""
        return len(self.classes) or 1

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.classes

    @property
    def encoding(self) -> Encoding:
        """Encoding of the columns of a table."""
        return Encoding(self.numbers, self.categories)


def fingerprint(paths: list[Path]) -> str:
    """Return a hash of the contents of files."""
    return digest("".join(digest(path.read_bytes()) for path in paths).encode())


def find_constant_columns(domains: Sequence[Tensor]) -> Tensor:
    """Return True for each column of all domains [N, columns] together that `Columns` sets to 0.

    Such a column has no value besides NaN, or a standard deviation that is nothing beside its mean.
    """
    parts = [part for domain in domains for part in torch.split(domain, CHUNK)]
    count = torch.stack([(~part.isnan()).sum(0) for part in parts]).sum(0).clamp(min=1)
    mean = torch.stack([part.nansum(0, dtype=torch.float64) for part in parts]).sum(0) / count
    squares = torch.stack([(part.double() - mean).square().nansum(0) for part in parts]).sum(0)
    return (squares / count).sqrt() <= CONSTANT * mean.abs()


def warn_of_unknown_categories(encoding: Encoding, columns: Mapping[str, Array], where: str) -> None:
    """Warn about texts in columns of categories that the training data do not have.

    Args:
        encoding: Encoding of the training data.
        columns: Columns of a table by name.
        where: Name of the table, for the warning.
    """
    for name, texts in encoding.unknown_categories(columns).items():
        known = [value for column, value in encoding.pairs if column == name]
        warnings.warn(
            f"Expected {_listed(known)} in the column {printable(name)} of {where}; found {_listed(texts)}. The "
            "model has not seen them and treats them as missing. Rename them if they mean the same.",
            ArrayWarning,
            stacklevel=2,
        )


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(map(printable, texts[:LISTED])) + more


def split_by_domain(inputs: Array | Tensor, labels: Array, numbers: Array, count: int) -> list[Domain]:
    """Return one `Domain` for each number of a domain, with its samples in their order.

    Args:
        inputs: [N, ...] inputs.
        labels: [N] class indices or targets.
        numbers: [N] number of the domain of each sample.
        count: Number of domains.
    """
    stored, targets = torch.as_tensor(inputs), torch.as_tensor(labels)
    targets = targets.float() if targets.is_floating_point() else targets.long()
    rows = [torch.from_numpy(np.flatnonzero(numbers == number)) for number in range(count)]
    return [Domain(stored[index], targets[index]) for index in rows]
