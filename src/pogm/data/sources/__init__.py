"""Published datasets: where they are published, how to download them, and how to prepare them for use.

A file of this folder with ``DATASET`` and ``prepare(raw, out)`` prepares the dataset of that name. Datasets in the
catalogue without such a file have the standard preparation, `layout.prepare_folders`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pogm._system.errors import unknown_name_error
from pogm.data.datasets import all_datasets
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.sources.catalogue import CATALOGUE
from pogm.data.sources.download import download as _download
from pogm.data.sources.layout import prepare_folders
from pogm.data.sources.transfer import ByteProgress

Prepare = Callable[[Path, Path], Path]


def preparations() -> dict[str, Prepare]:
    """Return the function ``prepare(raw, out)`` of every dataset that can be prepared."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found: dict[str, Prepare] = {module.DATASET: module.prepare for module in modules if hasattr(module, "DATASET")}
    for name in CATALOGUE.keys() & all_datasets().keys() - found.keys():
        dataset = all_datasets()[name]
        if issubclass(dataset, ImageDataset):
            found[name] = partial(prepare_folders, dataset)
    return found


def fetch(dataset: str, raw: Path, show: Callable[[str], AbstractContextManager[ByteProgress | None]]) -> list[Path]:
    """Download the published files of a dataset into `raw`. Files that exist are only verified.

    Args:
        dataset: Name in the catalogue.
        raw: Folder of the downloaded files.
        show: Shows the progress of one file; called with a text that names the file.

    Returns:
        Paths of the files.
    """
    if dataset not in CATALOGUE:
        raise unknown_name_error("a dataset that is fetched", dataset, CATALOGUE)
    files, paths = CATALOGUE[dataset].files, []
    for number, file in enumerate(files, start=1):
        with show(f"{file.name} ({number} of {len(files)})") as progress:
            paths.append(_download(file, raw, progress=progress))
    return paths


def prepare(dataset: str, raw: Path, out: Path) -> Path:
    """Make the dataset's folder in `out` from the downloaded files in `raw`, which are not changed.

    Returns:
        The dataset's folder.
    """
    if dataset not in preparations():
        raise unknown_name_error("a dataset that is prepared", dataset, preparations())
    return preparations()[dataset](raw, out)
