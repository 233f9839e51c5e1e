"""Plug-ins: algorithms, modifiers, datasets, networks and trackers of other packages.

A package registers an object by an entry point, for example in its ``pyproject.toml``::

    [project.entry-points."pogm.algorithms"]
    Mine = "my_package.my_module:Mine"

An object that is not registered is named by its path, ``my_package.my_module:Mine``. Entry points are read when a name
is asked for that pogm itself does not have, and a package is imported when one of its names is used. A package that
cannot be imported affects no other name.
"""

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from typing import Any

from pogm._system.errors import UsageError

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_path(name: str) -> bool:
    """Return True if a name has the form ``package.module:Name``."""
    return PATH.fullmatch(name) is not None


def registered_name(cls: type) -> str:
    """Return the name that finds a class: the name of a class of pogm, or the path of a class of another package.

    Methods under test, in `pogm.experiments`, are not registered and have a path, too.
    """
    is_own = cls.__module__.partition(".")[0] == "pogm" and not cls.__module__.startswith("pogm.experiments.")
    return cls.__name__ if is_own else f"{cls.__module__}:{cls.__qualname__}"


def short_name(name: str) -> str:
    """Return the name of a class without the path of its module."""
    return name.rpartition(":")[2]


class Plugins:
    """Plug-ins of one kind, found by the name of an entry point or by their path.

    Args:
        kind: Kind of object, such as "algorithm". The group of entry points is "pogm.algorithms".
        check: Function that raises a `UsageError` if an object is not of this kind. Its arguments are the name and the
            object.
    """

    def __init__(self, kind: str, check: Callable[[str, Any], None]):
        self.kind, self.check = kind, check
        self.group = f"pogm.{kind}s"

    def names(self) -> list[str]:
        """Return the names of all entry points, sorted; nothing is imported."""
        return sorted({entry.name for entry in _entries(self.group)})

    def has(self, name: str) -> bool:
        """Return True if a name has the form of a path or is that of an entry point; nothing is imported."""
        return is_path(name) or name in self.names()

    def package(self, name: str) -> str:
        """Return the packages that register a name, with their versions."""
        return " and ".join(_package(entry) for entry in _entries(self.group) if entry.name == name)

    def load(self, name: str) -> Any:
        """Import and return the plug-in of a name.

        Raises:
            UsageError: If two packages register the name, or the object cannot be imported or is of another kind. The
                message has the name of the package.
        """
        found = [entry for entry in _entries(self.group) if entry.name == name]
        if len(found) > 1:
            paths = " or ".join(entry.value for entry in found)
            raise UsageError(
                f"Expected one package with the {self.kind} {name}; found {self.package(name)}. "
                f"Uninstall one of them, or give the path: {paths}."
            )
        if found:
            value = self._import(name, found[0].value, f"the package {_package(found[0])}")
        else:
            make_current_folder_importable()
            value = self._import(name, name, f"the package {name.partition('.')[0].partition(':')[0]}")
        self.check(name, value)
        return value

    def _import(self, name: str, path: str, package: str) -> Any:
        module, _, attribute = path.partition(":")
        try:
            value: Any = importlib.import_module(module)
        except (Exception, SystemExit) as error:  # any error of a package that is not ours
            if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
                raise UsageError(
                    f"Expected {package} with the {self.kind} {path}; found that it is neither installed nor in the "
                    f"current folder, {os.getcwd()}. Install it, or change to the folder that contains it."
                ) from error
            raise UsageError(
                f"Expected to import the {self.kind} {name} of {package}; found {type(error).__name__}: {error}. "
                "Repair that package, or uninstall it."
            ) from error
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise UsageError(
                    f"Expected the {self.kind} {attribute} in the module {module} of {package}; found no such name. "
                    "Correct the name, or install the version of the package that has it."
                )
            value = getattr(value, part)
        return value


def make_current_folder_importable() -> None:
    """Add the current folder to the module search path, as ``python -m`` does."""
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)


def describe_packages(names: Iterable[str]) -> dict[str, str]:
    """Return the package and version of every name that is a path: "not installed" if its module is only a file."""
    paths = [name for name in names if is_path(name)]
    packages = packages_distributions() if paths else {}
    found = {path: packages.get(path.partition(":")[0].partition(".")[0], ()) for path in paths}
    return {path: ", ".join(f"{one} {version(one)}" for one in each) or "not installed" for path, each in found.items()}


def check_class(kind: str, base: type, name: str, value: Any) -> None:
    """Raise a `UsageError` if a plug-in is not a usable subclass of a base class.

    Args:
        kind: Kind of plug-in, such as "algorithm".
        base: Base class.
        name: Name of the plug-in, for the error.
        value: The plug-in.
    """
    path = f"{base.__module__}.{base.__name__}"
    if not (isinstance(value, type) and issubclass(value, base)):
        found = f"a subclass of {value.__mro__[1].__name__}" if isinstance(value, type) else type(value).__name__
        raise UsageError(
            f"Expected the {kind} {name} to be a subclass of {path}; found {found}. Derive it from {path}."
        )
    if any(isinstance(field, dataclasses.Field) for field in vars(value).values()):
        raise UsageError(
            f"Expected the {kind} {name} to be a dataclass, because it has hyperparameters; found a plain class. Add "
            "@dataclass(frozen=True)."
        )
    try:
        value()
    except TypeError as error:
        raise UsageError(
            f"Expected the {kind} {name} to have a default for every field; found: {error}. Add the defaults."
        ) from error


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module
