"""A table in memory as a dataset: what the estimators for scikit-learn train on."""

from dataclasses import dataclass
from typing import ClassVar

from pogm.data.datasets.array_dataset import InferredDataset
from pogm.data.datasets.base import Training
from pogm.data.transforms.arrays import Columns
from pogm.data.transforms.base import Transform


@dataclass(frozen=True)
class TableInMemory(InferredDataset):
    """A table that `fit` of an estimator received: the facts that determine the network and the preprocessing."""

    abstract: ClassVar[bool] = True  # has no files; not registered

    @property
    def title(self) -> str:
        """Name in messages."""
        return "X"

    @property
    def task(self) -> str:  # type: ignore[override]
        """Classification if there are classes, else regression."""
        return "classification" if self.classes else "regression"

    @property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of an encoded sample."""
        return (len(self.numbers) + len(self.encoding.pairs),)

    def transform(self, training: Training) -> Transform:
        """Return imputation, standardisation and indicators."""
        return Columns.build(len(self.numbers), len(self.encoding.pairs), indicators=self.indicators)
