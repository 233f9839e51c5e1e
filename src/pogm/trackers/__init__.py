"""One tracker per file, which has the name of its package; the folder is the registry."""

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from pogm._system.errors import UsageError, unknown
from pogm.core.registry import classes_in
from pogm.trackers.base import Tracker as Tracker


@cache
def all_trackers() -> dict[str, type[Tracker]]:
    """Every tracker by the name of its file."""
    return {found.__module__.rpartition(".")[2]: found for found in classes_in(__name__, Tracker).values()}


def check_trackers(names: Iterable[str]) -> None:
    """Refuse, before anything is trained, a name that nobody has and a package that is not here."""
    for name in names:
        if name not in all_trackers():
            raise unknown("a tracker", name, all_trackers())
        if find_spec(name) is None:
            raise UsageError(
                f"Expected the package {name} for --track {name}; found none. Install it: pip install 'pogm[{name}]'"
            )
