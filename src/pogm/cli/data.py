"""What ``pogm data`` does: which datasets are here, whether they are sound, and how to get the others."""

import argparse
import sys
from functools import partial
from pathlib import Path

from pogm._system.errors import DataError, UsageError, unknown
from pogm.benchmark.plan.parsing import own_folder
from pogm.benchmark.runs.progress import tracked, transferred
from pogm.data import sources
from pogm.data.datasets import DomainDataset, all_datasets
from pogm.data.datasets.folder import Folder
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.images.check import check
from pogm.data.images.class_folders import list_tree
from pogm.data.sources.catalogue import CATALOGUE

DOWNLOADS = "downloads"  # in the data folder


def list_data(options: argparse.Namespace) -> int:
    """Say which datasets are there, with their numbers of images, and how to get the others."""
    for name, dataset in all_datasets().items():
        if dataset is not Folder:
            print(f"{name:<15} {_state(dataset, options.data)}")
    print("Any other folder <folder>/<domain>/<class>/<image> is a dataset too: --dataset <folder>")
    return 0


def _state(dataset: type[DomainDataset], data: Path | None) -> str:
    if not issubclass(dataset, ImageDataset):
        if dataset.embedded:
            return "comes with the package"
        files = list((data / "MNIST" / "raw").glob("*-ubyte*")) if data else []
        return "here" if len(files) >= 4 else "missing; pogm data fetch MNIST"
    expected = f"{sum(dataset.counts)} images of {dataset.num_classes} classes"
    if data is None or not (data / dataset.folder).is_dir():
        return f"missing ({expected}); pogm data fetch {dataset.__name__}"
    try:
        tree = list_tree(data / dataset.folder)
    except DataError as error:
        return f"damaged: {error}"
    found = [sum(column) for column in zip(*tree.counts, strict=True)]
    listed = ", ".join(f"{name} {count}" for name, count in zip(tree.domains, found, strict=True))
    complete = (tree.domains, tuple(found)) == (dataset.folders, dataset.counts)
    return f"here, {len(tree.files)} images: {listed}{'' if complete else f' (published: {expected})'}"


def check_data(options: argparse.Namespace) -> int:
    """Read every image of a dataset; list what is corrupt, doubled across domains or in two classes at once."""
    folder = _folder(options.dataset, options.data)
    findings = check(folder, progress=partial(tracked, what="images"))
    print(findings.json() if options.json else findings.text(), end="")
    known = all_datasets().get(options.dataset)
    if known is not None and issubclass(known, ImageDataset) and (warning := known().count_warning(findings.tree)):
        print(f"pogm: {warning}", file=sys.stderr)
    return 0 if findings.clean else DataError.exit_code


def _folder(name: str, data: Path | None) -> Path:
    """Where a dataset lies; its images need not be sound."""
    found = all_datasets().get(name)
    if found is not None and found is not Folder:
        if not issubclass(found, ImageDataset):
            raise UsageError(
                f"Expected a dataset in folders of images to check; found {name}, which is not. Nothing to do."
            )
        return found().directory(data)
    folder = own_folder(name, data)
    if folder is None:
        raise unknown("a dataset or a folder of images", name, all_datasets())
    return folder


def fetch_data(options: argparse.Namespace) -> int:
    """Download datasets from where they are published, verify them, and put them into the layout."""
    data = _required(options.data)
    for name in options.datasets:
        name = "MNIST" if name in ("ColoredMNIST", "RotatedMNIST") else name
        raw = data / DOWNLOADS / name
        if name in CATALOGUE:
            print(f"{name}: terms of use: {CATALOGUE[name].terms}", file=sys.stderr)
        with transferred(name) as progress:
            sources.fetch(name, raw, progress)
        _prepare(name, raw, data)
    return 0


def prepare_data(options: argparse.Namespace) -> int:
    """Make a dataset's layout out of what was published, which stays as it is."""
    _prepare(options.dataset, options.raw, _required(options.data))
    return 0


def _prepare(name: str, raw: Path, data: Path) -> None:
    made = sources.prepare(name, raw, data)
    print(f"{name} is in {made}. Its images can be checked: pogm data check {name}", file=sys.stderr)


def _required(data: Path | None) -> Path:
    if data is None:
        raise UsageError("Expected a data folder; found none given. Pass --data FOLDER or set POGM_DATA.")
    return Path(data).expanduser()
