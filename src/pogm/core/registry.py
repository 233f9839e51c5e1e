"""Registry by folder: every class in a file of a package is registered. Plug-ins of other packages are found too."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Generic, TypeVar

from pogm._system.errors import unknown_name_error
from pogm.core.plugins import Plugins, check_class

Base = TypeVar("Base")


class Registry(Mapping[str, type[Base]], Generic[Base]):
    """Subclasses of a base class in the files of a package, by name, except those marked ``abstract``.

    A lookup imports only the file that has the name of the class (``GroupDRO`` is in ``group_dro.py``). All files are
    imported if there is no such file, and to iterate. The mapping has the classes of pogm; `find` also finds classes of
    other packages.

    Args:
        package: Name of the package. Its last part, without the s, is the kind of the classes: "algorithm".
        base: Base class.
    """

    def __init__(self, package: str, base: type[Base]):
        self.package, self.base = package, base
        self.kind = package.rpartition(".")[2].removesuffix("s")
        self.plugins = Plugins(self.kind, partial(check_class, self.kind, base))
        self._found: dict[str, type[Base]] = {}  # classes by name, of earlier lookups

    def find(self, name: str) -> type[Base]:
        """Return the class of a name: one of pogm, a registered plug-in, or a path ``package.module:Name``.

        Raises:
            UsageError: If there is no such class, or its package cannot be imported.
        """
        if not self.has(name):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise unknown_name_error(f"{article} {self.kind}", name, [*self, *self.plugins.names()])
        found: type[Base] = self[name] if name in self else self.plugins.load(name)
        return found

    def has(self, name: str) -> bool:
        """Return True if `find` has something to look up; a plug-in is not imported."""
        return name in self or self.plugins.has(name)

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
        if name not in self._found:
            file = self._files.get(name.lower())
            classes = self._classes_in(file) if file else {}
            self._found[name] = classes[name] if name in classes else self._all[name]
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
