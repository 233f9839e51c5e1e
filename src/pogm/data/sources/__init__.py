"""Getting datasets: what is published where, fetching it, and preparing it for use.

The folder is the registry: a file with ``DATASET`` and ``prepare(raw, out)`` prepares the dataset of that name.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pogm._system.errors import unknown
from pogm.data.sources.catalogue import CATALOGUE
from pogm.data.sources.download import download as _download
from pogm.data.sources.transfer import Progress

Prepare = Callable[[Path, Path], Path]


@cache
def preparations() -> dict[str, Prepare]:
    """Every dataset that can be prepared, with the function that does: ``prepare(raw, out)``."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.DATASET: module.prepare for module in modules if hasattr(module, "prepare")}


def fetch(dataset: str, raw: Path, progress: Progress | None = None) -> list[Path]:
    """Download what a dataset is published as into ``raw``; what is there already is only checked."""
    if dataset not in CATALOGUE:
        raise unknown("a dataset that is fetched", dataset, CATALOGUE)
    return [_download(source, raw, progress=progress) for source in CATALOGUE[dataset].files]


def prepare(dataset: str, raw: Path, out: Path) -> Path:
    """Make the dataset's folder in ``out`` from what was fetched into ``raw``, which stays as it is."""
    if dataset not in preparations():
        raise unknown("a dataset that is prepared", dataset, preparations())
    return preparations()[dataset](raw, out)
