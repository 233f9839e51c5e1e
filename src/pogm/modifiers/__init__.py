"""One modifier per file; the folder is the registry."""

from functools import cache

from pogm._system.errors import unknown
from pogm.core.registry import classes_in
from pogm.modifiers.base import Modifier as Modifier


@cache
def all_modifiers() -> dict[str, type[Modifier]]:
    """Every modifier by name."""
    return classes_in(__name__, Modifier)


def modifier_class(name: str) -> type[Modifier]:
    """The modifier of that name."""
    if name not in all_modifiers():
        raise unknown("a modifier", name, all_modifiers())
    return all_modifiers()[name]
