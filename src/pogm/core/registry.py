"""Registry by folder: every class in a file of a package is registered."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

Base = TypeVar("Base")


class Registry(Mapping[str, type[Base]], Generic[Base]):
    """Subclasses of a base class in the files of a package, by name, except those marked ``abstract``.

    A lookup imports only the file that has the name of the class (``GroupDRO`` is in ``group_dro.py``). All files are
    imported if there is no such file, and to iterate.

    Args:
        package: Name of the package.
        base: Base class.
    """

    def __init__(self, package: str, base: type[Base]):
        self.package, self.base = package, base

    @cached_property
    def _files(self) -> dict[str, str]:
        """Return the files of the package by their names without underscores."""
        folder = importlib.import_module(self.package)
        return {info.name.replace("_", ""): info.name for info in pkgutil.iter_modules(folder.__path__)}

    @cached_property
    def _all(self) -> dict[str, type[Base]]:
        found = {name: value for file in self._files.values() for name, value in self._classes_in(file).items()}
        return dict(sorted(found.items()))

    def _classes_in(self, file: str) -> dict[str, type[Base]]:
        module = importlib.import_module(f"{self.package}.{file}")
        return {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
            if issubclass(value, self.base) and value is not self.base and "abstract" not in vars(value)
        }

    def __getitem__(self, name: str) -> type[Base]:
        file = self._files.get(name.lower())
        classes = self._classes_in(file) if file else {}
        return classes[name] if name in classes else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
