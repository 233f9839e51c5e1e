"""Images in folders: ``<data folder>/<dataset>/<domain>/<class>/<image>``."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from pogm._system.errors import DataError
from pogm.core.hyperparameters import hyper
from pogm.data.datasets.base import Domain, DomainDataset, Training
from pogm.data.datasets.large_images import LargeImages
from pogm.data.images.cache import ON_BAD_IMAGE, Cached, cached
from pogm.data.images.class_folders import FolderWarning, Tree, read_tree
from pogm.data.images.index import fingerprint, index_of
from pogm.data.images.parallel import Progress, unseen

LISTED = 1000  # bad images that a record names


@dataclass(frozen=True)
class ImageDataset(DomainDataset):
    """A dataset in folders. Its classes are one map over all domains: the names of the class folders, sorted."""

    abstract: ClassVar[bool] = True  # not a dataset, but the base of some

    folder: ClassVar[str]  # in the data folder
    folders: ClassVar[tuple[str, ...]]  # of each domain
    counts: ClassVar[tuple[int, ...]]  # images of each domain, where all are there
    class_counts: ClassVar[tuple[tuple[int, ...], ...]] = ()  # of each domain and class, where published

    input_shape: ClassVar[tuple[int, int, int]] = (3, 224, 224)
    training: ClassVar[Training] = LargeImages()
    evaluate_every: ClassVar[int] = 300
    large: ClassVar[bool] = True
    drawn: ClassVar[bool] = False

    on_bad_image: str = hyper("refuse", options=ON_BAD_IMAGE)
    allow_unseen: bool = hyper(False)  # let a test domain have a class that no training domain has

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Every domain, out of the cache, which is made first where there is none."""
        tree = self.read(root)
        return domains_of(tree, cached(tree, self.on_bad_image))

    def prepare(self, root: Path | None, progress: Progress) -> None:
        """Make the cache."""
        tree = self.read(root, progress)
        cached(tree, self.on_bad_image, progress=progress)

    def found(self, root: Path | None) -> dict[str, Any]:
        """Which images they were, by content, and which were left out or padded."""
        tree = read_tree(self.place(root))
        index = index_of(tree)
        bad = cached(tree, self.on_bad_image, index=index).bad
        paths = [image.path for image in bad]
        return {"content": fingerprint(tree, index), "bad_images": len(paths), "bad": paths[:LISTED]}

    def read(self, root: Path | None, progress: Progress = unseen) -> Tree:
        """What the folder holds, compared with what it should."""
        tree = read_tree(self.place(root))
        if tree.domains != self.folders:
            raise DataError(
                f"Expected the folders {', '.join(self.folders)} in {tree.root}; found {', '.join(tree.domains)}. "
                f"Rename or remove what does not belong to {self.title}."
            )
        if len(tree.classes) != self.num_classes:
            raise DataError(
                f"Expected {self.num_classes} classes in {tree.root}; found {len(tree.classes)}:\n{tree.table()}\n"
                f"Get {self.title} again, or give the folder's path to use it as images of your own."
            )
        for warning in filter(None, (tree.warning(), self.miscounted(tree))):
            warnings.warn(warning, stacklevel=2)
        return tree

    def place(self, root: Path | None) -> Path:
        """Where it is."""
        if root is None:
            raise DataError(
                f"Expected the folder that holds {self.folder}; found none given. Pass --data FOLDER or set POGM_DATA."
            )
        if not (root / self.folder).is_dir():
            raise DataError(
                f"Expected the folder {self.folder} in {root}; found none. Pass another --data, or get it: "
                f"pogm data fetch {self.title}"
            )
        return root / self.folder

    def miscounted(self, tree: Tree) -> FolderWarning | None:
        """How the numbers of images differ from the published ones, if they do."""
        if tree.domains != self.folders:
            return FolderWarning(
                f"Expected the folders {', '.join(self.folders)} in {tree.root}; found {', '.join(tree.domains)}."
            )
        found = [sum(column) for column in zip(*tree.counts, strict=True)]
        unlike = [
            f"{have} instead of {want} in {name}"
            for name, have, want in zip(self.folders, found, self.counts, strict=True)
            if have != want
        ]
        for name, wanted, has in zip(self.folders, self.class_counts, zip(*tree.counts, strict=True), strict=False):
            for kind, want, have in zip(tree.classes, wanted, has, strict=True):
                if have != want:
                    unlike.append(f"{have} instead of {want} in {name}/{kind}")
        if not unlike:
            return None
        return FolderWarning(
            f"Expected {sum(self.counts)} images of {self.title}; found {sum(found)}: {', '.join(unlike)}. "
            "Results may differ from published ones."
        )

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Refuse test domains with a class that no training domain has: nothing could learn it."""
        trained = [domain.labels for number, domain in enumerate(domains) if number not in test_domains]
        seen = set(torch.cat(trained).tolist())
        for number in test_domains:
            unseen = sorted(set(domains[number].labels.tolist()) - seen)
            if unseen and not self.allow_unseen:
                raise DataError(
                    f"Expected every class of the test domain {self.domains[number]} in some training domain; found "
                    f"none with images of class {', '.join(map(self.class_name, unseen))}. Remove those images, or "
                    "let them count as errors: --set allow_unseen=true"
                )

    def class_name(self, label: int) -> str:
        """What a message calls a class."""
        return str(label)


def domains_of(tree: Tree, images: Cached) -> list[Domain]:
    """The kept images of each domain with their labels: slices of one mapped file."""
    files = [tree.files[number] for number in images.kept]
    labels = torch.tensor([file.label for file in files])
    counts = [sum(file.domain == number for file in files) for number in range(len(tree.domains))]
    if 0 in counts:
        raise DataError(
            f"Expected images in every domain of {tree.root}; found none that can be read in "
            f"{tree.domains[counts.index(0)]}. See: pogm data check {tree.root}"
        )
    parts = (torch.split(tensor, counts) for tensor in (images.images, labels, images.sizes))
    return [Domain(*domain) for domain in zip(*parts, strict=True)]
