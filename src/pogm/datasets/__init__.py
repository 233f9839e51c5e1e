"""One dataset per file; the folder is the registry. What states its domains is a dataset, and not a base of some."""

from functools import cache

from pogm.core.errors import unknown
from pogm.core.registry import classes_in
from pogm.datasets.base import DomainDataset as DomainDataset


@cache
def all_datasets() -> dict[str, type[DomainDataset]]:
    """Every dataset by name."""
    return {name: found for name, found in classes_in(__name__, DomainDataset).items() if hasattr(found, "domains")}


def dataset_class(name: str) -> type[DomainDataset]:
    """The dataset of that name."""
    if name not in all_datasets():
        raise unknown("a dataset", name, all_datasets())
    return all_datasets()[name]
