"""Datasets, one per file. Every `DomainDataset` class in a file of this folder is registered under its name."""

from functools import cache

from pogm.core.registry import Registry
from pogm.data.dataset_paths import is_file_name
from pogm.data.datasets.base import DomainDataset as DomainDataset


@cache
def all_datasets() -> Registry[DomainDataset]:
    """Return all dataset classes of pogm by name."""
    return Registry(__name__, DomainDataset)


def named_datasets() -> dict[str, type[DomainDataset]]:
    """Return the dataset classes that are chosen by name; the others are made from a path."""
    return {name: found for name, found in all_datasets().items() if not hasattr(found, "facts")}


def dataset_class(name: str) -> type[DomainDataset]:
    """Return the dataset class of a name, of pogm or of another package; see `Registry.find`."""
    return all_datasets().find(name)


def is_dataset(name: str) -> bool:
    """Return True if a name is that of a dataset class, and not the path of a folder or a file."""
    return name in all_datasets() or (all_datasets().plugins.has(name) and not is_file_name(name.partition(":")[0]))


def is_named_dataset(name: str) -> bool:
    """Return True if a name is that of a dataset class that is not made from a path."""
    return is_dataset(name) and not hasattr(dataset_class(name), "facts")
