"""Experiment trackers, one per file. The name of a tracker is that of its file and of its Python package."""

from collections.abc import Iterable
from functools import cache, partial
from importlib.util import find_spec

from pogm._system.errors import UsageError, unknown_name_error
from pogm.core.plugins import Plugins, check_class
from pogm.core.registry import Registry
from pogm.trackers.base import Tracker as Tracker


@cache
def all_trackers() -> dict[str, type[Tracker]]:
    """Return all tracker classes of pogm by name."""
    return {found.__module__.rpartition(".")[2]: found for found in Registry(__name__, Tracker).values()}


PLUGINS = Plugins("tracker", partial(check_class, "tracker", Tracker))


def tracker_class(name: str) -> type[Tracker]:
    """Return the tracker of a name, of pogm or of another package; raise a `UsageError` if there is none."""
    if name in all_trackers():
        return all_trackers()[name]
    if not PLUGINS.has(name):
        raise unknown_name_error("a tracker", name, [*all_trackers(), *PLUGINS.names()])
    found: type[Tracker] = PLUGINS.load(name)
    return found


def check_trackers(names: Iterable[str]) -> None:
    """Raise a `UsageError` if a tracker is unknown or its package is not installed."""
    for name in names:
        tracker_class(name)
        if name in all_trackers() and find_spec(name) is None:
            raise UsageError(
                f"Expected the package {name} for --track {name}; found none. Install it: pip install 'pogm[{name}]'"
            )
