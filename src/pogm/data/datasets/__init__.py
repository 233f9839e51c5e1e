"""Datasets, one per file. Every `DomainDataset` class in a file of this folder is registered under its name."""

from functools import cache

from pogm._system.errors import unknown_name_error
from pogm.core.registry import Registry
from pogm.data.datasets.base import DomainDataset as DomainDataset


@cache
def all_datasets() -> Registry[DomainDataset]:
    """Return all dataset classes by name."""
    return Registry(__name__, DomainDataset)


def dataset_class(name: str) -> type[DomainDataset]:
    """Return the dataset class of a name; raise a `UsageError` with the nearest name if there is none."""
    if name not in all_datasets():
        raise unknown_name_error("a dataset", name, all_datasets())
    return all_datasets()[name]
