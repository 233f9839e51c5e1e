"""Labelled images of new sites, from a folder or a metadata file, with the classes of a model."""

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError, UsageError, unknown_name_error
from pogm._system.terminal import printable
from pogm.data.dataset_paths import is_table, split_options
from pogm.data.images.decode import IMAGE_SUFFIXES
from pogm.data.images.image_listing import make_listing, to_pairs
from pogm.data.images.listing import Directory, Walker
from pogm.data.images.metadata import SPLITS, read_table

LAYOUT = (
    "Arrange the images as <class>/<image> for one site, or <site>/<class>/<image> for several, or list them in a "
    "metadata file with the columns path, label and domain."
)


class Site(NamedTuple):
    """Labelled images of one site."""

    name: str
    paths: tuple[str, ...]
    labels: tuple[int, ...]  # index of the class in the model


def read_sites(
    images: Path | str,
    classes: Sequence[str],
    *,
    sites: Sequence[str] = (),
    split: str | None = None,
    mapping: Mapping[str, str] | None = None,
    ignore_unknown_classes: bool = False,
    to_ignore: str = "--ignore-unknown-classes",
) -> tuple[list[Site], dict[str, int]]:
    """List the labelled images of one or more sites, from a folder or a metadata file.

    Every file in a class folder counts as an image, also in folders below it, as in training. Hidden files are ignored.

    Args:
        images: As in `evaluate`.
        classes: Names of the classes that the model knows.
        sites: As in `evaluate`.
        split: As in `evaluate`.
        mapping: New names of classes, if ``images`` names no class mapping. An empty name leaves the class out.
        ignore_unknown_classes: Leave out images of other classes.
        to_ignore: How a user leaves them out, for the error.

    Returns:
        The sites, and the number of images of each class that was left out.

    Raises:
        DataError: The layout is wrong, a site has no images, or a class is unknown.
        UsageError: A site or an option is unknown.
    """
    name, options = split_options(str(images))
    path = Path(name)
    has_table = is_table(path) and not path.is_dir()
    if has_table:
        listed, given = _list_table(path, options, split)
    elif split is not None:
        raise UsageError(f"Expected a metadata file for the split {split}; found {name}. Leave the split out.")
    else:
        given = to_pairs(make_listing(path, options).mapping) if path.is_dir() else {}
        listed = _list_class_folders(path, {*classes, *(mapping or {}), *given})
    if unknown_sites := [site for site in sites if site not in listed]:
        raise unknown_name_error(f"a site of {printable(name)}", unknown_sites[0], listed)
    renamed = given or mapping or {}
    found, unknown, left_out = [], Counter[str](), Counter[str]()
    for site in dict.fromkeys(sites or listed):
        rows = [(path, renamed.get(label, label)) for path, label in listed[site]]
        left_out.update(label for _, label in listed[site] if not renamed.get(label, label))
        unknown.update(label for _, label in rows if label and label not in classes)
        known = [(path, classes.index(label)) for path, label in rows if label in classes]
        found.append(Site(site, tuple(path for path, _ in known), tuple(label for _, label in known)))
    if unknown and not ignore_unknown_classes:
        raise _unknown_classes_error(name, "labels" if has_table else "folders", unknown, classes, to_ignore)
    if empty := [site.name for site in found if not site.paths]:
        raise DataError(
            f"Expected images of the classes {_join(classes)}; found none in {_join(empty)}. Check the path. {LAYOUT}"
        )
    return found, dict(unknown + left_out)


Labelled = dict[str, list[tuple[str, str]]]  # path and label of each image, by site


def _list_table(path: Path, options: Mapping[str, str], split: str | None) -> tuple[Labelled, dict[str, str]]:
    """List the images of a metadata file; return them and the class mapping that belongs to it."""
    listing = make_listing(path, options)
    tree = read_table(path, to_pairs(listing.columns), least_domains=1)
    if split is not None and split not in SPLITS:
        raise unknown_name_error("a split", split, SPLITS)
    if split is not None and not tree.splits:
        raise DataError(
            f"Expected a column of splits in {printable(str(path))}; found none. Leave the split out, or name the "
            f"column: {printable(path.name)}:split=COLUMN"
        )
    listed: Labelled = {}
    for number, file in enumerate(tree.files):
        if split is None or tree.splits[number] == split:
            labelled = (str(path.parent / file.path), tree.classes[file.label])
            listed.setdefault(tree.domains[file.domain], []).append(labelled)
    if not listed:
        raise DataError(f"Expected images of the split {split} in {printable(str(path))}; found none. Choose another.")
    return listed, to_pairs(listing.mapping)


def _list_class_folders(folder: Path, classes: Collection[str]) -> Labelled:
    """List the images of a folder of classes, or of sites; ``classes`` has all known names of class folders."""
    if not folder.is_dir():
        raise DataError(
            f"Expected a folder of images at {printable(str(folder))}; found none. Check the path. {LAYOUT}"
        )
    walker = Walker(str(folder), follow_outside=True)
    top = _list_folders(walker, walker.top, folder)
    if not top:
        raise DataError(f"Expected class folders in {printable(str(folder))}; found none. {LAYOUT}")
    if _has_sites(walker, top, classes):
        directories = {site.name: _list_folders(walker, site, folder) for site in top}
    else:
        directories = {folder.resolve().name: top}
    listed = {
        site: [(str(folder / file), found.name) for found in inner for file in walker.walk_files(found)]
        for site, inner in directories.items()
    }
    if walker.bad:
        named = "; ".join(f"{printable(link.path)} {link.reason}" for link in sorted(walker.bad)[:5])
        raise DataError(f"Expected images in {printable(str(folder))}; found that {named}. Remove them.")
    return listed


def _has_sites(walker: Walker, top: Sequence[Directory], classes: Collection[str]) -> bool:
    """Return True for ``<site>/<class>/<image>`` and False for ``<class>/<image>``."""
    listings = [walker.list_directory(directory) for directory in top]
    walker.bad.clear()  # they are listed again
    has_images = any(file.lower().endswith(IMAGE_SUFFIXES) for _, files in listings for file in files)
    outer = {directory.name for directory in top}
    inner = {directory.name for directories, _ in listings for directory in directories}
    known_inside = not inner.isdisjoint(classes)
    if not outer.isdisjoint(classes):
        return known_inside and not has_images
    return known_inside or (bool(inner) and not has_images)


def _list_folders(walker: Walker, directory: Directory, root: Path) -> list[Directory]:
    """List the folders in a folder that must not contain images."""
    directories, files = walker.list_directory(directory)
    loose = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    if loose:
        path = printable(str(root / directory.path))
        raise DataError(
            f"Expected only class folders in {path}; found {len(loose)} images, such as {printable(loose[0])}. "
            f"{LAYOUT} For images without labels: pogm predict."
        )
    return directories


def _unknown_classes_error(
    images: str, what: str, unknown: Mapping[str, int], classes: Sequence[str], to_ignore: str
) -> DataError:
    listed = ", ".join(f"{printable(name)} ({count} images)" for name, count in unknown.items())
    folded = {name.casefold(): name for name in classes}
    near = {
        name: folded[found[0]]
        for name in unknown
        if (found := difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6))
    }
    hint = "".join(f"Did you mean {printable(right)!r} by {printable(name)!r}? " for name, right in near.items())
    return DataError(
        f"Expected {what} with the names of the classes of the model, {_join(classes)}, in {printable(images)}; "
        f"found {listed}. {hint}Rename the {what}, or leave their images out: {to_ignore}. {LAYOUT}"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names))
