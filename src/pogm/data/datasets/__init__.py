"""One dataset per file; the folder is the registry."""

from functools import cache

from pogm._system.errors import unknown
from pogm.core.registry import classes_in
from pogm.data.datasets.base import DomainDataset as DomainDataset


@cache
def all_datasets() -> dict[str, type[DomainDataset]]:
    """Every dataset by name."""
    return classes_in(__name__, DomainDataset)


def dataset_class(name: str) -> type[DomainDataset]:
    """The dataset of that name."""
    if name not in all_datasets():
        raise unknown("a dataset", name, all_datasets())
    return all_datasets()[name]
