"""The folder is the registry: whoever puts a file there has registered it."""

import importlib
import pkgutil
from typing import TypeVar

Base = TypeVar("Base")


def classes_in(package: str, base: type[Base]) -> dict[str, type[Base]]:
    """Every subclass of ``base`` that a file of the package defines, by name; but not those marked ``abstract``."""
    folder = importlib.import_module(package)
    found: dict[str, type[Base]] = {}
    for info in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for name, value in vars(module).items():
            ours = isinstance(value, type) and value.__module__ == module.__name__
            if ours and issubclass(value, base) and value is not base and "abstract" not in vars(value):
                found[name] = value
    return dict(sorted(found.items()))
