"""Tables and figures of the paper, one file each. A file with ``plan`` and ``exhibits`` is an experiment."""

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from functools import cache

from pogm._system.errors import unknown_name_error
from pogm.experiments.base import SCALES, Experiment

PAPER = ("table", "figure")  # prefixes of experiments of the paper, in its order


@cache
def all_experiments() -> dict[str, Experiment]:
    """Return every experiment by name: tables, figures, then experiments that the paper does not have."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "plan") and hasattr(module, "exhibits"):
            title, _, text = (module.__doc__ or "").strip().partition("\n")
            by_row, combines = getattr(module, "BY_ROW", False), getattr(module, "COMBINES", False)
            found[info.name] = Experiment(
                info.name, title.rstrip("."), text.strip(), module.plan, module.exhibits, by_row, combines
            )
    return dict(sorted(found.items(), key=lambda item: (_rank(item[0]), item[0])))


def _rank(name: str) -> int:
    return next((rank for rank, prefix in enumerate(PAPER) if name.startswith(prefix)), len(PAPER))


def find_experiments(names: Collection[str]) -> list[Experiment]:
    """Return experiments in the order of the paper. The names "paper" and "all" stand for several.

    Raises:
        UsageError: If a name is unknown.
    """
    known = all_experiments()
    groups = {"all": set(known), "paper": {name for name in known if name.startswith(PAPER)}}
    for name in names:
        if name not in known and name not in groups:
            raise unknown_name_error("an experiment", name, [*known, *groups])
    wanted = set(names).union(*(groups.get(name, ()) for name in names))
    return [experiment for name, experiment in known.items() if name in wanted]


def catalogue() -> Iterator[str]:
    """Yield a line for every experiment, with its title, and for every scale."""
    for name, experiment in all_experiments().items():
        yield f"{name:<16} {experiment.title}"
    for name, scale in SCALES.items():
        yield f"--scale {name:<14} {scale.summary}"
