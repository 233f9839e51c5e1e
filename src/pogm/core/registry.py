"""Registry by folder: every class in a file of a package is registered."""

import importlib
import pkgutil
from typing import TypeVar

Base = TypeVar("Base")


def classes_in(package: str, base: type[Base]) -> dict[str, type[Base]]:
    """Return the subclasses of ``base`` in the files of a package, by name, except those marked ``abstract``."""
    folder = importlib.import_module(package)
    found: dict[str, type[Base]] = {}
    for info in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for name, value in vars(module).items():
            is_defined_there = isinstance(value, type) and value.__module__ == module.__name__
            if is_defined_there and issubclass(value, base) and value is not base and "abstract" not in vars(value):
                found[name] = value
    return dict(sorted(found.items()))
