"""Datasets of image folders: ``<data folder>/<dataset>/<domain>/<class>/<image>``."""

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from pogm._system.collector import pause_collector
from pogm._system.errors import DataError
from pogm.core.hyperparameters import MOST_SAMPLES, Power, hyper
from pogm.data.datasets.base import Domain, DomainDataset, Training, find_unseen
from pogm.data.images.cache import ON_BAD_IMAGE, CachedImages, load_cached
from pogm.data.images.class_folders import FolderWarning, ImageTree
from pogm.data.images.image_listing import Listing
from pogm.data.images.index import FolderScan, scan_folder
from pogm.data.images.intensity import Intensity
from pogm.data.images.metadata import SPLITS
from pogm.data.images.parallel import Progress, no_progress
from pogm.data.transforms.base import Transform
from pogm.data.transforms.photographs import Photographs

LISTED = 1000  # bad images that a record names


@dataclass(frozen=True)
class LargeImages(Training):
    """DomainBed's settings for images of 224×224: a ResNet-50 with ImageNet weights, and augmented images.

    Training domains are also *evaluated* on augmented images, as in DomainBed, where a domain has one transform.
    ``eval_augment=False`` evaluates all domains on images without augmentation.
    """

    network: str = hyper("resnet50")  # name of the network, or timm/MODEL
    weights: str = hyper("pretrained")  # initial weights: "random", "pretrained", or "sha256:..." for a file
    lr: float = hyper(5e-5, Power(10, -5, -3.5), above=0)  # learning rate
    weight_decay: float = hyper(0.0, Power(10, -6, -2), least=0)  # L2 penalty of the optimizer
    batch_size: int = hyper(
        32, Power(2, 3, 5.5, integer=True), least=1, most=MOST_SAMPLES
    )  # images of each domain in a minibatch
    data_augmentation: bool = hyper(True)  # crop, flip and colour jitter of training images
    eval_augment: bool = hyper(True)  # evaluate training domains on augmented images
    image_size: int = hyper(224, least=8, most=1024)  # height and width of the network's input

    def transform(self, input_shape: tuple[int, ...]) -> Transform:
        """Return the transform that resizes to a square of `image_size`, normalises and, if set, augments."""
        shape = (input_shape[0], self.image_size, self.image_size)
        return Photographs(shape, self.data_augmentation, self.eval_augment)


@dataclass(frozen=True)
class ImageDataset(DomainDataset):
    """Base class of datasets of image folders. The classes of all domains are the sorted names of the class folders."""

    abstract: ClassVar[bool] = True  # a base class; not registered

    folder: ClassVar[str]  # name of the dataset's folder in the data folder
    folders: ClassVar[tuple[str, ...]]  # names of the domains' folders
    counts: ClassVar[tuple[int, ...]]  # published number of images of each domain
    class_counts: ClassVar[tuple[tuple[int, ...], ...]] = ()  # published number for each domain and class, if known
    is_fetched: ClassVar[bool] = True  # `pogm data fetch` downloads it

    input_shape: ClassVar[tuple[int, int, int]] = (3, 224, 224)
    training: ClassVar[Training] = LargeImages()
    evaluate_every: ClassVar[int] = 300
    large: ClassVar[bool] = True
    uses_seed: ClassVar[bool] = False

    on_bad_image: str = hyper("refuse", options=ON_BAD_IMAGE)  # refuse, skip or pad images that cannot be decoded
    allow_unseen: bool = hyper(False)  # allow classes in a test domain that no training domain has
    stratified: bool = hyper(False, added_later=True)  # keep the proportions of the classes in every split
    intensity: str = hyper("none", added_later=True)  # scaling of 16-bit images: auto, window:LOW:HIGH, image or none

    def __post_init__(self) -> None:
        super().__post_init__()
        Intensity.parse(self.intensity)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains from the cache; build the cache first if there is none."""
        scan = self.scan(root)
        with pause_collector():
            return split_domains(scan.tree, self.load_images(scan), self.stratified)

    def prepare(self, root: Path | None, progress: Progress) -> None:
        """Build the cache."""
        self.load_images(self.scan(root, progress), progress)

    def load_images(self, scan: FolderScan, progress: Progress = no_progress) -> CachedImages:
        """Load the images of a scanned folder from the cache; build the cache first if there is none."""
        settings = self.on_bad_image, self.intensity
        if settings not in scan.loaded:
            how, index = Intensity.parse(self.intensity), scan.index(progress)
            scan.loaded[settings] = load_cached(
                scan.tree, self.on_bad_image, intensity=how, index=index, progress=progress
            )
        images: CachedImages = scan.loaded[settings]
        return images

    def describe_data(self, root: Path | None) -> dict[str, Any]:
        """Return the fingerprint of the images, their scaling, and which of them were skipped or padded.

        ``intensity`` is there if images have more than 8 bits per channel: the text of the `Intensity` that scaled
        them, which a prediction must apply too.
        """
        scan = scan_folder(self.listing(root))
        images = self.load_images(scan)
        is_scaled = any(record.is_wide for record in scan.index())
        scaling = {"intensity": str(images.intensity)} if is_scaled else {}
        paths = [image.path for image in images.bad]
        return {"content": scan.fingerprint, "bad_images": len(paths), "bad": paths[:LISTED], **scaling}

    def class_names(self, root: Path | None) -> tuple[str, ...]:
        """Return the names of the class folders."""
        return scan_folder(self.listing(root)).tree.classes

    def scan(self, root: Path | None, progress: Progress = no_progress) -> FolderScan:
        """Scan the dataset's folder, and compare it with what was published.

        Raises:
            DataError: If the domains or the number of classes differ. Other numbers of images are only a warning.
        """
        scan = scan_folder(self.directory(root))
        tree = scan.list_images(progress)
        if tree.domains != self.folders:
            raise DataError(
                f"Expected the folders {', '.join(self.folders)} in {tree.root}; found {', '.join(tree.domains)}. "
                f"Rename or remove what does not belong to {self.title}."
            )
        if len(tree.classes) != self.num_classes:
            raise DataError(
                f"Expected {self.num_classes} classes in {tree.root}; found {len(tree.classes)}:",
                *tree.table().splitlines(),
                f"Get {self.title} again, or give the folder's path to use it as a dataset of your own.",
            )
        for warning in filter(None, (tree.warning(), self.count_warning(tree))):
            warnings.warn(warning, stacklevel=2)
        return scan

    def listing(self, root: Path | None) -> Listing:
        """Return where the images are and how to list them."""
        return Listing(self.directory(root))

    def directory(self, root: Path | None) -> Path:
        """Return the dataset's folder in the data folder; raise a `DataError` if it is not there."""
        if root is None:
            raise DataError(
                f"Expected the folder that holds {self.folder}; found none given. Pass --data FOLDER or set POGM_DATA."
            )
        if not (root / self.folder).is_dir():
            how = f"get it: pogm data fetch {self.title}" if self.is_fetched else "copy the published images there."
            raise DataError(f"Expected the folder {self.folder} in {root}; found none. Pass another --data, or {how}")
        return root / self.folder

    def count_warning(self, tree: ImageTree) -> FolderWarning | None:
        """Return a warning if the numbers of images differ from the published ones, else None."""
        if tree.domains != self.folders:
            return FolderWarning(
                f"Expected the folders {', '.join(self.folders)} in {tree.root}; found {', '.join(tree.domains)}."
            )
        found = [sum(column) for column in zip(*tree.counts, strict=True)]
        differences = [
            f"{have} instead of {want} in {name}"
            for name, have, want in zip(self.folders, found, self.counts, strict=True)
            if have != want
        ]
        for name, wanted, has in zip(self.folders, self.class_counts, zip(*tree.counts, strict=True), strict=False):
            for kind, want, have in zip(tree.classes, wanted, has, strict=True):
                if have != want:
                    differences.append(f"{have} instead of {want} in {name}/{kind}")
        if not differences:
            return None
        return FolderWarning(
            f"Expected {sum(self.counts)} images of {self.title}; found {sum(found)}: {', '.join(differences)}. "
            "Results may differ from published ones."
        )

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Raise a `DataError` if a test domain has a class that no training domain has, unless `allow_unseen`."""
        if self.allow_unseen:
            return
        for number, unseen in find_unseen(domains, test_domains).items():
            raise DataError(
                f"Expected every class of the test domain {self.domains[number]} in some training domain; found none "
                f"with images of class {', '.join(map(self.class_name, unseen))}. Remove those images, or let them "
                "count as errors: --set allow_unseen=true"
            )

    def class_name(self, label: int) -> str:
        """Return the name of a class for messages."""
        return str(label)


def split_domains(tree: ImageTree, images: CachedImages, stratified: bool = False) -> list[Domain]:
    """Return the images of each domain with their labels, as slices of one memory-mapped file."""
    files = [tree.files[number] for number in images.kept]
    labels = torch.tensor([file.label for file in files])
    found = Counter(file.domain for file in files)
    counts = [found[number] for number in range(len(tree.domains))]
    if 0 in counts:
        raise DataError(
            f"Expected images in every domain of {tree.root}; found none that can be read in "
            f"{tree.domains[counts.index(0)]}. See: pogm data check {tree.root}"
        )
    groups = splits = None
    if tree.groups:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(tree.groups))}
        groups = torch.tensor([numbers[tree.groups[number]] for number in images.kept])
    if tree.splits:
        splits = torch.tensor([list(SPLITS).index(tree.splits[number]) for number in images.kept])
    parts = [
        [None] * len(counts) if tensor is None else torch.split(tensor, counts)
        for tensor in (images.images, labels, images.sizes, groups, splits)
    ]
    return [Domain(*domain)._replace(stratified=stratified) for domain in zip(*parts, strict=True)]
