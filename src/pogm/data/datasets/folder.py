"""Any folder of images, ``<folder>/<domain>/<class>/<image>``: a dataset of one's own without writing Python."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pogm._system.errors import DataError
from pogm.core.hyperparameters import hyper
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.images.class_folders import Tree, read_tree
from pogm.data.images.index import fingerprint, index_of
from pogm.data.images.parallel import Progress, unseen


@dataclass(frozen=True)
class Folder(ImageDataset):
    """Images of your own: the folders in the folder are the domains, the folders in those the classes.

    What it is, is its content, wherever the folder lies and whatever it is called.

    Input: images of any size.
    Label: the class folder.
    Domain: the folder around it.
    Licence: yours.
    """

    facts: ClassVar[tuple[str, ...]] = ("title", "domains", "classes", "content")  # found, not chosen

    title: str = hyper("")
    domains: tuple[str, ...] = hyper(())  # type: ignore[misc]
    classes: tuple[str, ...] = hyper(())
    content: str = hyper("")  # a fingerprint of all images with their domains and classes

    @classmethod
    def of(cls, folder: Path, progress: Progress = unseen) -> Self:
        """The dataset in a folder."""
        tree = read_tree(folder)
        if warning := tree.warning():
            warnings.warn(warning, stacklevel=2)
        content = fingerprint(tree, index_of(tree, progress=progress))
        return cls(title=folder.resolve().name, domains=tree.domains, classes=tree.classes, content=content)

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """How many class folders there are."""
        return len(self.classes)

    @property
    def seed_name(self) -> str:
        """Its content: the folder may be renamed."""
        return self.content

    def read(self, root: Path | None, progress: Progress = unseen) -> Tree:
        """What the folder holds, if it is what it was."""
        tree = read_tree(self.place(root))
        if fingerprint(tree, index_of(tree, progress=progress)) != self.content:
            raise DataError(
                f"Expected the images that this run began with in {tree.root}; found others. Restore them, name the "
                "folder that has them with --data, or start a new run."
            )
        return tree

    def place(self, root: Path | None) -> Path:
        """The folder of its name in the data folder; or, if it was renamed, the data folder itself."""
        if root is None:
            raise DataError(
                f"Expected to be told where the images of {self.title} are; found no data folder. "
                "Pass --data with that folder, or the one around it."
            )
        return root / self.title if (root / self.title).is_dir() else root

    def class_name(self, label: int) -> str:
        """The folder's name."""
        return self.classes[label]
