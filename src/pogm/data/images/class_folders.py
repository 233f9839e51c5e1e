"""A dataset as folders, ``<root>/<domain>/<class>/<image>``: its domains, classes and files in sorted order.

`ImageTree` is also the listing of a metadata file, see `pogm.data.images.metadata`.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError, Lines
from pogm._system.terminal import printable
from pogm.data.images.decode import IMAGE_SUFFIXES
from pogm.data.images.listing import BadLink, Directory, Walker
from pogm.data.images.parallel import Progress, no_progress

LAYOUT = "Arrange the images as <root>/<domain>/<class>/<image>."
LISTED = 5  # links that a message names


class FolderWarning(Lines, UserWarning):
    """An image folder differs from what is expected: classes differ between domains, or counts from published ones."""


class ImageFile(NamedTuple):
    """One image: its path below the root, with slashes, and the numbers of its domain and its class."""

    path: str
    domain: int
    label: int


@dataclass(frozen=True)
class ImageTree:
    """Listing of a dataset's folder.

    All domains share one list of classes: the sorted union of their class folders. `files` are sorted by domain, then
    by class, then as torchvision's ``ImageFolder`` sorts them: by the path of the directory, then by name.
    """

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[ImageFile, ...]
    folders: frozenset[tuple[int, int]]  # (class, domain) pairs that have a folder, even if it is empty
    bad_links: tuple[BadLink, ...] = ()
    groups: tuple[str, ...] = ()  # group of each file, such as a patient; empty if there are no groups
    splits: tuple[str, ...] = ()  # "train", "val" or "test" for each file; empty if splits are not given

    @cached_property
    def counts(self) -> list[list[int]]:
        """Number of images of each class (row) in each domain (column)."""
        found = Counter((file.label, file.domain) for file in self.files)
        return [[found[label, domain] for domain in range(len(self.domains))] for label in range(len(self.classes))]

    @cached_property
    def problems(self) -> dict[str, str]:
        """Description of the problem of each class that has one."""
        alike: dict[str, list[str]] = defaultdict(list)
        for name in self.classes:
            alike[_fold(name)].append(name)
        found = {}
        for label, name in enumerate(self.classes):
            without = [domain for domain, count in enumerate(self.counts[label]) if not count]
            missing = [self.domains[domain] for domain in without if (label, domain) not in self.folders]
            empty = [self.domains[domain] for domain in without if (label, domain) in self.folders]
            similar = [other for other in alike[_fold(name)] if other != name]
            texts = [f"missing from {_join(missing)}"] if missing else []
            texts += [f"an empty folder in {_join(empty)}"] if empty else []
            texts += [f"spelt like {_join(similar)}, but a separate class"] if similar else []
            if texts:
                found[name] = "; ".join(texts)
        return found

    def warning(self) -> FolderWarning | None:
        """Return a warning that lists the classes that differ between domains, with their counts; None if none do."""
        if not self.problems:
            return None
        lines = [f"  {printable(name)}: {problem}" for name, problem in self.problems.items()]
        return FolderWarning(
            f"Expected the same classes in every domain of {printable(str(self.root))}; found {len(self.problems)} of "
            f"{len(self.classes)} that differ:",
            *lines,
            *self.table(self.problems).splitlines(),
            "Every name is a class in all domains; rename or remove folders if this is not intended.",
        )

    def table(self, classes: Iterable[str] | None = None) -> str:
        """Return the number of images per class and domain as aligned text; ``-`` where there is no folder.

        Args:
            classes: Classes to show; all if None.
        """
        wanted = set(self.classes if classes is None else classes)
        rows = [["class", *map(printable, self.domains)]]
        for label, name in enumerate(self.classes):
            if name in wanted:
                counts = enumerate(self.counts[label])
                cells = [str(count) if (label, domain) in self.folders else "-" for domain, count in counts]
                rows.append([printable(name), *cells])
        rows.append(["all classes", *(str(sum(column)) for column in zip(*self.counts, strict=True))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def read_tree(root: Path, *, progress: Progress = no_progress) -> ImageTree:
    """List a dataset's folder and check that it can be used.

    Every file in a class folder counts as an image, whatever its name is: decoding finds the files that are not images.
    Hidden files are ignored.

    Args:
        root: Folder of the domains.
        progress: Shows how many class folders were listed.

    Raises:
        DataError: If the layout is wrong, a domain has no images, or a link loops, leads nowhere or leaves the root.
    """
    tree = list_tree(root, progress=progress)
    if tree.bad_links:
        named = "; ".join(f"{printable(link.path)} {link.reason}" for link in tree.bad_links[:LISTED])
        more = f" and {len(tree.bad_links) - LISTED} more" if len(tree.bad_links) > LISTED else ""
        raise DataError(
            f"Expected files and folders in {printable(str(root))}; found that {named}{more}. "
            "Remove them, or put the images themselves there."
        )
    check_domains(tree)
    return tree


def list_tree(root: Path, *, progress: Progress = no_progress) -> ImageTree:
    """List a dataset's folder as `read_tree` does, but accept empty domains, and list bad links in `bad_links`."""
    if not root.is_dir():
        raise DataError(f"Expected a folder of domains at {printable(str(root))}; found none. Check the path.")
    walker = Walker(str(root))
    domains = _list_folders(walker, walker.top, root)
    if len(domains) < 2:
        found = f"only {printable(domains[0].name)}" if domains else "none"
        tables = [path for path in root.iterdir() if path.suffix.lower() in (".csv", ".tsv", ".parquet")]
        hint = " For tables: put the rows of all domains into one file, with a column domain." if tables else ""
        raise DataError(f"Expected two or more domains in {printable(str(root))}; found {found}. {LAYOUT}{hint}")

    folders = [(number, inner) for number, found in enumerate(domains) for inner in _list_folders(walker, found, root)]
    paths = {}  # files by (class name, domain number), in the order of the domains
    for domain, directory in progress(folders, len(folders), what="folders"):
        paths[directory.name, domain] = list(walker.walk_files(directory))
    classes = sorted({name for name, _ in paths})
    if not classes:
        raise DataError(f"Expected class folders in the domains of {printable(str(root))}; found none. {LAYOUT}")
    labels = {name: label for label, name in enumerate(classes)}
    return ImageTree(
        root=root,
        domains=tuple(directory.name for directory in domains),
        classes=tuple(classes),
        files=tuple(ImageFile(path, domain, labels[name]) for (name, domain), found in paths.items() for path in found),
        folders=frozenset((labels[name], domain) for name, domain in paths),
        bad_links=tuple(sorted(walker.bad)),
    )


def map_classes(tree: ImageTree, mapping: Mapping[str, str]) -> ImageTree:
    """Return the listing with other names of classes. Several classes may get the same name.

    Args:
        tree: The listing.
        mapping: New name of each class that changes; an empty name leaves the images of the class out.

    Raises:
        DataError: If the mapping names a class that does not exist, or no class is left.
    """
    if not mapping:
        return tree
    if unknown := [name for name in mapping if name not in tree.classes]:
        raise DataError(
            f"Expected classes of {printable(str(tree.root))} to map: {_join(tree.classes)}; found {_join(unknown)}. "
            "Correct or remove these rows of the class mapping."
        )
    names = [mapping.get(name, name) for name in tree.classes]
    classes = sorted(set(filter(None, names)))
    if not classes:
        raise DataError("Expected a class that is not left out; found none. Change the class mapping.")
    labels = {old: classes.index(name) for old, name in enumerate(names) if name}
    kept = [number for number, file in enumerate(tree.files) if file.label in labels]
    kept.sort(key=lambda number: (tree.files[number].domain, labels[tree.files[number].label]))
    return replace(
        tree,
        classes=tuple(classes),
        files=tuple(tree.files[number]._replace(label=labels[tree.files[number].label]) for number in kept),
        folders=frozenset((labels[label], domain) for label, domain in tree.folders if label in labels),
        groups=tuple(tree.groups[number] for number in kept) if tree.groups else (),
        splits=tuple(tree.splits[number] for number in kept) if tree.splits else (),
    )


def _list_folders(walker: Walker, directory: Directory, root: Path) -> list[Directory]:
    """List the folders in the root or in a domain. Images are not allowed there; text files are."""
    directories, files = walker.list_directory(directory)
    loose = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    if loose:
        more = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
        path = printable(str(root / directory.path))
        raise DataError(f"Expected only folders in {path}; found the image {printable(loose[0])}{more}. {LAYOUT}")
    return directories


def check_domains(tree: ImageTree) -> None:
    """Raise a `DataError` if a domain has no images."""
    without = sorted(set(range(len(tree.domains))) - {file.domain for file in tree.files})
    if without:
        raise DataError(
            f"Expected images in every domain of {printable(str(tree.root))}; found none in "
            f"{_join([tree.domains[domain] for domain in without])}. Put images there, or remove the folder."
        )


def _fold(name: str) -> str:
    """Return the same text for names that differ only in case or in the Unicode form of accents."""
    return unicodedata.normalize("NFC", name).casefold()


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names))
