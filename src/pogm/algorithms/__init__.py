"""Domain-generalization algorithms, one per file.

Every subclass of `Algorithm` that a file of this folder defines is registered under its class name. Start with
`base.py`; `erm.py` and `vrex.py` are the shortest examples.
"""

from functools import cache

from pogm.algorithms.base import Algorithm as Algorithm
from pogm.core.registry import Registry


@cache
def all_algorithms() -> Registry[Algorithm]:
    """Return all algorithm classes of pogm by name, in alphabetical order."""
    return Registry(__name__, Algorithm)


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the algorithm class with this name, of pogm or of another package; see `Registry.find`."""
    return all_algorithms().find(name)
