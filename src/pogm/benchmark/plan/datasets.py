"""Datasets and domains by name: a dataset is also found by the path of its images, table or arrays."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from pogm._system.errors import UsageError, unknown_name_error
from pogm.data.dataset_paths import is_file_name, split_options
from pogm.data.datasets import dataset_class, is_named_dataset, named_datasets
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.datasets.base import DomainDataset
from pogm.data.datasets.folder import Folder
from pogm.data.images.parallel import Progress, no_progress
from pogm.data.tables.samples import is_array_file


def find_dataset(name: str, data: Path | None = None, progress: Progress = no_progress) -> DomainDataset:
    """Return a dataset by name, or a folder of images, a metadata file, a table or arrays by the path.

    A path may be relative to the data folder. Options may follow it: ``sites/metadata.csv:label=y,group=patient``.
    ``progress`` shows how many images were read.
    """
    if is_named_dataset(name):
        return dataset_class(name)()
    path, options = locate(name, data)
    if is_array_file(path, options):
        return ArrayFile.from_path(path, options)
    return Folder.from_path(path, options, progress)


def locate(name: str, data: Path | None) -> tuple[Path, dict[str, str]]:
    """Return the path of images, a table or arrays, and the options that follow it in the name.

    Raises:
        UsageError: If there is nothing at this path, also below the data folder.
    """
    path, options = split_options(name)
    found = find_data_path(path, data)
    if found is None:
        raise _no_data_error(path)
    return found, options


def _no_data_error(path: str) -> UsageError:
    """Return the error for a dataset that is neither a known name nor an existing path."""
    folder, name = os.path.split(path.rstrip(os.sep))
    is_path = bool(folder) or is_file_name(path)
    near = difflib.get_close_matches(name, _data_names(folder), n=1, cutoff=0.7)
    if is_path or near:
        hint = f"Did you mean {os.path.join(folder, near[0])}?" if near else "Check the path."
        what = "a folder of images, a table or a file of arrays"
        return UsageError(f"Expected {what} at {path}; found none. {hint}")
    return unknown_name_error("a dataset or a folder of images", path, named_datasets())


def _data_names(folder: str) -> list[str]:
    """Return the names of folders, tables and files of arrays in a folder; none if it cannot be read."""
    try:
        entries = list(os.scandir(folder or "."))
    except OSError:
        return []
    return [entry.name for entry in entries if entry.is_dir() or is_file_name(entry.name)]


def find_data_path(name: str, data: Path | None) -> Path | None:
    """Return the path of images, a table or arrays, or of this name in the data folder; None if it is missing."""
    paths = [Path(name), *([data / name] if data else [])]
    return next((path for path in paths if path.is_dir() or (path.is_file() and is_file_name(str(path)))), None)


def data_folder(names: Sequence[str], data: Path | None) -> Path | None:
    """Return the folder of the datasets: ``data``, or the parent folder of a dataset that is given as a path."""
    given = [split_options(name) for name in names if not is_named_dataset(name)]
    paths = [
        path if path.is_dir() or is_array_file(path, options) else path.parent  # the folder of a metadata file
        for name, options in given
        if (path := find_data_path(name, None)) is not None
    ]
    parents = {path.resolve().parent for path in paths}
    elsewhere = data is not None and len(paths) < len(names) and parents != {data.resolve()}
    if len(parents) > 1 or (parents and elsewhere):
        raise UsageError(
            f"Expected datasets of one data folder; found them in several: {', '.join(names)}. "
            "Put them side by side, name that folder with --data, and give their names alone."
        )
    return parents.pop() if parents else data


def domain_index(name: str, dataset: DomainDataset) -> int:
    """Return the index of a domain, given by its name, the name of its folder, or its index."""
    domains = dataset.domains
    for names in (domains, getattr(dataset, "folders", ())):
        if name in names:
            return int(names.index(name))
    numbers = [str(index) for index in range(len(domains))]
    if name in numbers:
        return numbers.index(name)
    raise unknown_name_error(
        f"a domain of {dataset.title}, by name or by number from 0 to {len(domains) - 1},", name, domains
    )
