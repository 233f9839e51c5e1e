"""Modifiers: changes of training or prediction that combine with any algorithm, one per file.

Every subclass of `Modifier` that a file of this folder defines is registered under its class name. Start with
`base.py`; `mixup.py` is the shortest example.
"""

from functools import cache

from pogm._system.errors import unknown_name_error
from pogm.core.registry import Registry
from pogm.modifiers.base import Modifier as Modifier


@cache
def all_modifiers() -> Registry[Modifier]:
    """Return all modifier classes by name, in alphabetical order."""
    return Registry(__name__, Modifier)


def modifier_class(name: str) -> type[Modifier]:
    """Return the modifier class with this name, or raise a `UsageError` that lists similar names."""
    if name not in all_modifiers():
        raise unknown_name_error("a modifier", name, all_modifiers())
    return all_modifiers()[name]
