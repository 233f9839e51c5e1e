"""``pogm data``: list, check, download and prepare datasets, and compute features of images."""

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, ClassVar

from pogm._system.errors import FINDINGS, DataError, UsageError
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.features import Features
from pogm.cli.json_output import Output
from pogm.cli.options import Data as DataOptions
from pogm.cli.parser import Command, argument, group, option

if TYPE_CHECKING:
    from pogm.data.datasets import DomainDataset
    from pogm.data.images.image_listing import Listing
    from pogm.data.tables.check import SampleFindings

DOWNLOADS = "downloads"  # subfolder of the data folder


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the datasets that are present, with their number of images, and how to get the others."""

    examples: ClassVar[str] = "pogm data list --data ~/data"

    data: DataOptions = group(DataOptions)
    output: Output = group(Output)

    def run(self) -> int:
        """Print a line for each dataset."""
        from pogm.data.datasets import named_datasets

        found = {name: describe_dataset(dataset, self.data.folder) for name, dataset in named_datasets().items()}

        def show_text() -> None:
            width = max(map(len, found))
            for name, text in found.items():
                print_line(f"{name:<{width}} {text}")
            print_line("Any other folder <folder>/<domain>/<class>/<image> is a dataset too: --dataset <folder>")
            print_line("So is a table or a file of arrays with labels and domains: --dataset <file>")

        present = ("here", "comes with")  # first words of `describe_dataset`
        listed = [{"name": name, "present": text.startswith(present), "state": text} for name, text in found.items()]
        self.output.show("data list", {"data": self.data.folder, "datasets": listed}, show_text)
        return 0


def describe_dataset(dataset: type["DomainDataset"], data: Path | None) -> str:
    """Return whether a dataset is present, complete or damaged."""
    from pogm.data.datasets.array_dataset import ArrayDataset
    from pogm.data.datasets.image_dataset import ImageDataset
    from pogm.data.images.class_folders import list_tree

    if issubclass(dataset, ArrayDataset):
        here = data is not None and all((data / dataset.folder / file).is_file() for file in dataset.files)
        return "here" if here else f"missing; {dataset().how_to_get}"
    if not issubclass(dataset, ImageDataset):
        if dataset.embedded:
            return "comes with the package"
        files = list((data / "MNIST" / "raw").glob("*-ubyte*")) if data else []
        return "here" if len(files) >= 4 else "missing; pogm data fetch MNIST"
    expected = f"{sum(dataset.counts)} images of {dataset.num_classes} classes"
    if data is None or not (data / dataset.folder).is_dir():
        copy = f"copy the published images to <data folder>/{dataset.folder}"
        return f"missing ({expected}); {f'pogm data fetch {dataset.__name__}' if dataset.is_fetched else copy}"
    try:
        tree = list_tree(data / dataset.folder)
    except DataError as error:
        return f"damaged: {error}"
    found = [sum(column) for column in zip(*tree.counts, strict=True)]
    listed = ", ".join(f"{name} {count}" for name, count in zip(tree.domains, found, strict=True))
    complete = (tree.domains, tuple(found)) == (dataset.folders, dataset.counts)
    return f"here, {len(tree.files)} images: {listed}{'' if complete else f' (published: {expected})'}"


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Read every image or sample of a dataset; list what is corrupt, doubled, in several domains or in two classes."""

    examples: ClassVar[str] = (
        "pogm data check PACS\npogm data check ./hospitals\n"
        "pogm data check sites/metadata.csv:label=y --group patient\n"
        "pogm data check patients.csv:label=outcome        a table: missing values, constant columns, equal rows"
    )
    notes: ClassVar[str] = f"Exit code: 0 if nothing is wrong, {FINDINGS} if something is, 3 if the data are missing."

    dataset: str = argument(
        "Name of a dataset, a folder of images, a metadata file, a table, or a file of arrays.", complete="datasets"
    )
    group_column: str | None = option(
        "Column of a metadata file with the group of each image, such as a patient (default: the column group).",
        None,
        flag="--group",
        metavar="COLUMN",
    )
    data: DataOptions = group(DataOptions)
    output: Output = group(Output)

    def run(self) -> int:
        """Print the findings; the exit code is `FINDINGS` if there are any."""
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.data.datasets import dataset_class, is_dataset
        from pogm.data.datasets.image_dataset import ImageDataset
        from pogm.data.images.check import Findings, check

        findings = self._check_samples() or check(self._listing(), progress=show_image_progress)
        document = {"dataset": self.dataset, **findings.to_json()}
        self.output.show("data check", document, lambda: print(findings.text(), end=""))
        if isinstance(findings, Findings):
            known = dataset_class(self.dataset) if is_dataset(self.dataset) else None
            if known and issubclass(known, ImageDataset) and (miscounted := known().count_warning(findings.tree)):
                print_line(f"pogm: {miscounted}", file=sys.stderr)
        if findings.clean and not findings.small:
            self._say_next(verdict=isinstance(findings, Findings) or (bool(findings.classes) and findings.is_table))
        return 0 if findings.clean else FINDINGS

    def _say_next(self, *, verdict: bool) -> None:
        """Name the next command: pogm verdict, or pogm train for data that it does not support."""
        words = ["pogm", "verdict" if verdict else "train", self.dataset, *self.data.words]
        words += ["--group", self.group_column] if self.group_column else []
        note(f"Next: {join(words if verdict else [*words, '--out', 'model'])}")

    def _check_samples(self) -> "SampleFindings | None":
        """Check a dataset that is not images; return None if it is images."""
        from pogm.benchmark.plan.datasets import data_folder, find_data_path, find_dataset
        from pogm.data.dataset_paths import add_options, split_options
        from pogm.data.datasets import dataset_class, is_named_dataset
        from pogm.data.datasets.array_dataset import ArrayDataset
        from pogm.data.tables.check import check_samples
        from pogm.data.tables.samples import is_array_file

        name, data = self.dataset, self.data.folder
        if is_named_dataset(name):
            found = dataset_class(name)()
            return check_samples(found, data) if isinstance(found, ArrayDataset) else None
        path, options = split_options(name)
        file = find_data_path(path, data)
        if file is None or not is_array_file(file, options):
            return None
        dataset = find_dataset(add_options(name, group=self.group_column), data)
        return check_samples(dataset, data_folder([name], data)) if isinstance(dataset, ArrayDataset) else None

    def _listing(self) -> "Listing":
        """Return where the images of the dataset are; they need not be readable."""
        from pogm.benchmark.plan.datasets import locate
        from pogm.data.dataset_paths import add_options
        from pogm.data.datasets import dataset_class, is_dataset
        from pogm.data.datasets.folder import Folder
        from pogm.data.datasets.image_dataset import ImageDataset
        from pogm.data.images.image_listing import Listing, make_listing

        name, data = self.dataset, self.data.folder
        found = dataset_class(name) if is_dataset(name) else None
        if found is not None and found is not Folder:
            if not issubclass(found, ImageDataset):
                raise UsageError(
                    f"Expected a dataset in folders of images to check; found {name}, which is not. Nothing to do."
                )
            return Listing(found().directory(data))
        return make_listing(*locate(add_options(name, group=self.group_column), data))


@dataclass(frozen=True, kw_only=True)
class Fetch(Command):
    """Download datasets from their publishers, verify them, and arrange them in folders."""

    examples: ClassVar[str] = "pogm data fetch PACS --data ~/data"

    datasets: tuple[str, ...] = argument(
        "Names of datasets (see: pogm data list).", metavar="DATASET", complete="datasets"
    )
    data: DataOptions = group(DataOptions)

    def run(self) -> int:
        """Download and prepare one dataset after the other."""
        from pogm.benchmark.progress.display import show_transfer
        from pogm.data import sources
        from pogm.data.sources.catalogue import CATALOGUE

        data = _require_folder(self.data)
        for name in self.datasets:
            name = "MNIST" if name in ("ColoredMNIST", "RotatedMNIST") else name
            raw = data / DOWNLOADS / name
            if name in CATALOGUE:
                note(f"{name}: terms of use: {CATALOGUE[name].terms}")
            sources.fetch(name, raw, show_transfer)
            _prepare(name, raw, data)
        return 0


@dataclass(frozen=True, kw_only=True)
class Prepare(Command):
    """Arrange downloaded files in the folders of a dataset. The downloaded files stay unchanged."""

    examples: ClassVar[str] = "pogm data prepare TerraIncognita --from ~/downloads/terra --data ~/data"

    dataset: str = argument("Name of a dataset.", complete="datasets")
    raw: Path = option("Folder with the downloaded files.", flag="--from", metavar="FOLDER")
    data: DataOptions = group(DataOptions)

    def run(self) -> int:
        """Prepare the dataset."""
        _prepare(self.dataset, self.raw, _require_folder(self.data))
        return 0


def _prepare(name: str, raw: Path, data: Path) -> None:
    from pogm.data import sources

    made = sources.prepare(name, raw, data)
    note(f"{name} is in {made}. To check its images: pogm data check {name}")


def _require_folder(options: DataOptions) -> Path:
    if options.folder is None:
        raise UsageError("Expected a data folder; found none given. Pass --data FOLDER or set POGM_DATA.")
    return options.folder


class Data(Command):
    """List, check, download and prepare datasets, and compute features of images."""

    examples: ClassVar[str] = """
pogm data list                                     which datasets are present, and how to get the others
pogm data check ./hospitals                        read every image; list what is corrupt, doubled or in two classes
pogm data fetch PACS --data ~/data                 download, verify, unpack
pogm data prepare DomainNet --from ~/downloads     arrange files that you downloaded yourself
pogm data features ./hospitals --out sites.npz     features of a fixed network, to train on in seconds"""
    commands: ClassVar[tuple[type[Command], ...]] = (List, Check, Fetch, Prepare, Features)


COMMAND = Data
