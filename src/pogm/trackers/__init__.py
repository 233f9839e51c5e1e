"""Experiment trackers, one per file. The name of a tracker is that of its file and of its Python package."""

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from pogm._system.errors import UsageError, unknown_name_error
from pogm.core.registry import Registry
from pogm.trackers.base import Tracker as Tracker


@cache
def all_trackers() -> dict[str, type[Tracker]]:
    """Return all tracker classes by name."""
    return {found.__module__.rpartition(".")[2]: found for found in Registry(__name__, Tracker).values()}


def check_trackers(names: Iterable[str]) -> None:
    """Raise a `UsageError` if a tracker is unknown or its package is not installed."""
    for name in names:
        if name not in all_trackers():
            raise unknown_name_error("a tracker", name, all_trackers())
        if find_spec(name) is None:
            raise UsageError(
                f"Expected the package {name} for --track {name}; found none. Install it: pip install 'pogm[{name}]'"
            )
