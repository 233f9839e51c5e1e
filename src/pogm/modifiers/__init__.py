"""Modifiers: changes of training or prediction that combine with any algorithm, one per file.

Every subclass of `Modifier` that a file of this folder defines is registered under its class name. Start with
`base.py`; `mixup.py` is the shortest example.
"""

from functools import cache

from pogm.core.registry import Registry
from pogm.modifiers.base import Modifier as Modifier


@cache
def all_modifiers() -> Registry[Modifier]:
    """Return all modifier classes of pogm by name, in alphabetical order."""
    return Registry(__name__, Modifier)


def modifier_class(name: str) -> type[Modifier]:
    """Return the modifier class with this name, of pogm or of another package; see `Registry.find`."""
    return all_modifiers().find(name)
