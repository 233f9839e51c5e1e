"""A dataset as folders: ``<root>/<domain>/<class>/<image>``, every name in sorted order."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError
from pogm.data.images.listing import BadLink, Folder, Walker
from pogm.data.images.names import shown

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LAYOUT = "Arrange the images as <root>/<domain>/<class>/<image>."
LISTED = 5  # links a message names


class FolderWarning(UserWarning):
    """Domains that do not have the same classes."""


class File(NamedTuple):
    """One image: its path below the root, with slashes, and the positions of its domain and its class."""

    path: str
    domain: int
    label: int


@dataclass(frozen=True)
class Tree:
    """What a dataset's folder holds.

    The classes are one map over all domains: the sorted union of their class folders. ``files`` come domain by domain,
    class by class; in a class, in the order of torchvision's ``ImageFolder``: folder by folder, then by name.
    """

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[File, ...]
    folders: frozenset[tuple[int, int]]  # (class, domain) for which there is a folder, be it empty
    bad_links: tuple[BadLink, ...] = ()

    @cached_property
    def counts(self) -> list[list[int]]:
        """How many images each class (row) has in each domain (column)."""
        found = Counter((file.label, file.domain) for file in self.files)
        return [[found[label, domain] for domain in range(len(self.domains))] for label in range(len(self.classes))]

    @cached_property
    def problems(self) -> dict[str, str]:
        """What is wrong with which class."""
        alike: dict[str, list[str]] = defaultdict(list)
        for name in self.classes:
            alike[_folded(name)].append(name)
        found = {}
        for label, name in enumerate(self.classes):
            without = [domain for domain, count in enumerate(self.counts[label]) if not count]
            missing = [self.domains[domain] for domain in without if (label, domain) not in self.folders]
            empty = [self.domains[domain] for domain in without if (label, domain) in self.folders]
            others = [other for other in alike[_folded(name)] if other != name]
            said = [f"missing from {_listed(missing)}"] if missing else []
            said += [f"an empty folder in {_listed(empty)}"] if empty else []
            said += [f"spelt like {_listed(others)}, but a class of its own"] if others else []
            if said:
                found[name] = "; ".join(said)
        return found

    def warning(self) -> FolderWarning | None:
        """What to warn of, if anything: the classes that are not the same in every domain, and their counts."""
        if not self.problems:
            return None
        lines = [f"  {shown(name)}: {problem}" for name, problem in self.problems.items()]
        return FolderWarning(
            f"Expected the same classes in every domain of {shown(str(self.root))}; found {len(self.problems)} of "
            f"{len(self.classes)} that are not:\n" + "\n".join(lines) + f"\n{self.table(self.problems)}\n"
            "Every name is a class in all domains; rename or remove folders if that is not meant."
        )

    def table(self, classes: Iterable[str] | None = None) -> str:
        """Images per class and domain as aligned text, of some classes or all; ``-`` where there is no folder."""
        wanted = set(self.classes if classes is None else classes)
        rows = [["class", *map(shown, self.domains)]]
        for label, name in enumerate(self.classes):
            if name in wanted:
                counts = enumerate(self.counts[label])
                cells = [str(count) if (label, domain) in self.folders else "-" for domain, count in counts]
                rows.append([shown(name), *cells])
        rows.append(["all classes", *(str(sum(column)) for column in zip(*self.counts, strict=True))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def read_tree(root: Path, *, follow_outside: bool = False) -> Tree:
    """List a dataset's folder; links that loop, lead nowhere or leave the root are refused.

    Every file in a class folder counts as an image, whatever it is called: decoding tells. Hidden files do not count.
    """
    tree = list_tree(root, follow_outside=follow_outside)
    if tree.bad_links:
        named = "; ".join(f"{shown(link.path)} {link.reason}" for link in tree.bad_links[:LISTED])
        more = f" and {len(tree.bad_links) - LISTED} more" if len(tree.bad_links) > LISTED else ""
        raise DataError(
            f"Expected files and folders in {shown(str(root))}; found that {named}{more}. "
            "Remove them, or put the images themselves there (or, from Python, follow links: follow_outside=True)."
        )
    _expect_images(tree)
    return tree


def list_tree(root: Path, *, follow_outside: bool = False) -> Tree:
    """The same for who wants to know more: links that are not followed are listed, and domains may be empty."""
    if not root.is_dir():
        raise DataError(f"Expected a folder of domains at {shown(str(root))}; found none. Check the path.")
    walker = Walker(str(root), follow_outside)
    domains = _folders(walker, walker.top, root)
    if len(domains) < 2:
        found = f"only {shown(domains[0].name)}" if domains else "none"
        raise DataError(f"Expected two or more domains in {shown(str(root))}; found {found}. {LAYOUT}")

    paths = {}  # of (class, domain), domain by domain
    for domain, folder in enumerate(domains):
        for inner in _folders(walker, folder, root):
            paths[inner.name, domain] = list(walker.files(inner))
    classes = sorted({name for name, _ in paths})
    if not classes:
        raise DataError(f"Expected class folders in the domains of {shown(str(root))}; found none. {LAYOUT}")
    labels = {name: label for label, name in enumerate(classes)}
    return Tree(
        root=root,
        domains=tuple(folder.name for folder in domains),
        classes=tuple(classes),
        files=tuple(File(path, domain, labels[name]) for (name, domain), found in paths.items() for path in found),
        folders=frozenset((labels[name], domain) for name, domain in paths),
        bad_links=tuple(sorted(walker.bad)),
    )


def _folders(walker: Walker, folder: Folder, root: Path) -> list[Folder]:
    """The folders in the root or in a domain, where no image may lie; lists and read-me files may."""
    folders, files = walker.listing(folder)
    loose = [name for name in files if name.lower().endswith(SUFFIXES)]
    if loose:
        more = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
        place = shown(str(root / folder.path))
        raise DataError(f"Expected only folders in {place}; found the image {shown(loose[0])}{more}. {LAYOUT}")
    return folders


def _expect_images(tree: Tree) -> None:
    without = sorted(set(range(len(tree.domains))) - {file.domain for file in tree.files})
    if without:
        raise DataError(
            f"Expected images in every domain of {shown(str(tree.root))}; found none in "
            f"{_listed([tree.domains[domain] for domain in without])}. Put some there, or remove the folder."
        )


def _folded(name: str) -> str:
    """The same for names that differ in case alone, or in how a system writes an accent."""
    return unicodedata.normalize("NFC", name).casefold()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names))
