"""Any image folder ``<folder>/<domain>/<class>/<image>`` as a dataset, without writing Python."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pogm._system.errors import DataError
from pogm.core.hyperparameters import hyper
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.images.index import FolderScan, scan_folder
from pogm.data.images.parallel import Progress, no_progress


@dataclass(frozen=True)
class Folder(ImageDataset):
    """Your own images: the folders in the folder are the domains, and the folders in those are the classes.

    The dataset is identified by its content. The path and the name of the folder may change.

    Input: images of any size.
    Label: the class folder.
    Domain: the folder around it.
    Licence: yours.
    """

    facts: ClassVar[tuple[str, ...]] = ("title", "domains", "classes", "content")  # read from the folder, not settable

    title: str = hyper("")  # name of the folder
    domains: tuple[str, ...] = hyper(())  # type: ignore[misc]
    classes: tuple[str, ...] = hyper(())
    content: str = hyper("")  # fingerprint of all images with their domains and classes

    @classmethod
    def from_directory(cls, directory: Path, progress: Progress = no_progress) -> Self:
        """Return the dataset in a directory. The whole content is read the first time, to compute its fingerprint.

        `intensity` is "auto" if images have more than 8 bits per channel. It is "none" in trials that were saved before
        it was a setting, and for images of 8 bits, so that their trials keep their ids.
        """
        scan = scan_folder(directory)
        if warning := scan.tree.warning():
            warnings.warn(warning, stacklevel=2)
        is_wide = any(record.is_wide for record in scan.index(progress))
        return cls(
            title=directory.resolve().name,
            domains=scan.tree.domains,
            classes=scan.tree.classes,
            content=scan.fingerprint,
            intensity="auto" if is_wide else "none",
        )

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return len(self.classes)

    @property
    def seed_name(self) -> str:
        """Fingerprint of the content, because the folder may be renamed."""
        return self.content

    def scan(self, root: Path | None, progress: Progress = no_progress) -> FolderScan:
        """Scan the folder; raise a `DataError` if its content is not that of this dataset."""
        scan = scan_folder(self.directory(root))
        scan.index(progress)
        if scan.fingerprint != self.content:
            raise DataError(
                f"Expected the images that this run began with in {scan.root}; found others. Restore them, name the "
                "folder that has them with --data, or start a new run."
            )
        return scan

    def directory(self, root: Path | None) -> Path:
        """Return the folder with this title in the data folder or, if it was renamed, the data folder itself."""
        if root is None:
            raise DataError(
                f"Expected the folder of the images of {self.title}; found no data folder given. "
                "Pass --data with that folder, or the one around it."
            )
        return root / self.title if (root / self.title).is_dir() else root

    def class_name(self, label: int) -> str:
        """Return the name of the class folder."""
        return self.classes[label]
