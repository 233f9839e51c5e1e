"""One method per file; the folder is the registry."""

from functools import cache

from pogm._system.errors import unknown
from pogm.algorithms.base import Algorithm as Algorithm
from pogm.core.registry import classes_in


@cache
def all_algorithms() -> dict[str, type[Algorithm]]:
    """Every algorithm by name."""
    return classes_in(__name__, Algorithm)


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of that name."""
    if name not in all_algorithms():
        raise unknown("an algorithm", name, all_algorithms())
    return all_algorithms()[name]
