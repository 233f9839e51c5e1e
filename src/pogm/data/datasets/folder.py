"""Any image folder ``<folder>/<domain>/<class>/<image>``, or metadata file, as a dataset without writing Python."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pogm._system.errors import DataError
from pogm.core.hyperparameters import hyper
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.images.image_listing import Listing, make_listing
from pogm.data.images.index import FolderScan, scan_folder
from pogm.data.images.parallel import Progress, no_progress


@dataclass(frozen=True)
class Folder(ImageDataset):
    """Your own images: a folder of domains with folders of classes, or a metadata file with a row for each image.

    The dataset is identified by its content. The path and the name of the folder may change.

    Input: images of any size.
    Label: the class folder, or a column of the metadata file.
    Domain: the folder around it, or a column of the metadata file.
    Licence: yours.
    """

    facts: ClassVar[tuple[str, ...]] = (  # read from the folder, not settable
        "title",
        "domains",
        "classes",
        "content",
        "file",
        "columns",
        "mapping",
    )

    title: str = hyper("")  # name of the folder
    domains: tuple[str, ...] = hyper(())  # type: ignore[misc]
    classes: tuple[str, ...] = hyper(())
    content: str = hyper("")  # fingerprint of all images with their domains, classes, groups and splits
    file: str = hyper("", added_later=True)  # name of the metadata file; empty for folders of classes
    columns: tuple[str, ...] = hyper((), added_later=True)  # columns of the metadata file: role, name, role, name, ...
    mapping: tuple[str, ...] = hyper((), added_later=True)  # other names of classes: from, to, from, to, ...

    @property
    def has_equal_splits(self) -> bool:
        """True if no column keeps groups of images, which have different sizes, in one split."""
        return "group" not in self.columns[::2]

    @classmethod
    def from_path(
        cls,
        path: Path,
        options: Mapping[str, str] | None = None,
        progress: Progress = no_progress,
        read_images: bool = True,
    ) -> Self:
        """Return the dataset of a folder or of a metadata file.

        The whole content is read the first time, to compute its fingerprint. `intensity` is "auto" if images have more
        than 8 bits per channel. It is "none" in trials that were saved before it was a setting, and for images of 8
        bits, so that their trials keep their ids.

        Args:
            path: A folder ``<domain>/<class>/<image>``, or a metadata file.
            options: Columns and class mapping, see `make_listing`.
            progress: Shows how many folders were listed, and how many images were read.
            read_images: Read the images. If False, the dataset has no fingerprint and serves for planning only.
        """
        listing = make_listing(path, options or {})
        folder, file = (path, "") if path.is_dir() else (path.parent, path.name)
        scan = scan_folder(listing)
        tree = scan.list_images(progress) if read_images else listing.read(strict=False, progress=progress)
        if read_images and (warning := tree.warning()):
            warnings.warn(warning, stacklevel=2)
        is_wide = read_images and any(record.is_wide for record in scan.index(progress))
        return cls(
            title=folder.resolve().name,
            domains=tree.domains,
            classes=tree.classes,
            content=scan.fingerprint if read_images else "",
            file=file,
            columns=listing.columns,
            mapping=listing.mapping,
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
        scan = scan_folder(self.listing(root))
        scan.index(progress)
        if scan.fingerprint != self.content:
            raise DataError(
                f"Expected the images that this run began with in {scan.listing.path}; found others. Restore them, "
                "name the folder that has them with --data, or start a new run."
            )
        return scan

    def listing(self, root: Path | None) -> Listing:
        """Return where the images are, and the columns and the class mapping of this dataset."""
        return Listing(self.directory(root) / self.file, self.columns, self.mapping)

    def directory(self, root: Path | None) -> Path:
        """Return the folder with this title in the data folder or, if it was renamed, the data folder itself."""
        if root is None:
            raise DataError(
                f"Expected the folder of the images of {self.title}; found no data folder given. "
                "Pass --data with that folder, or the one around it."
            )
        return root / self.title if (root / self.title / self.file).exists() else root

    def class_name(self, label: int) -> str:
        """Return the name of the class."""
        return self.classes[label]
