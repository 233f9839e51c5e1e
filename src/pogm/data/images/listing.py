"""Lists of folders: hidden files left out, links followed only where they lead somewhere new and allowed.

Goes by what a folder's listing says, and asks the system again only about links: a million files take seconds.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from pogm._system.errors import DataError
from pogm.data.images.names import shown

IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}  # what systems leave behind, besides names that begin with a dot


class BadLink(NamedTuple):
    """What was not followed, a link or something that is neither file nor folder, and why."""

    path: str
    reason: str


class Folder(NamedTuple):
    """A folder by its path below the root, with the real paths of all folders above it and its own."""

    path: str
    stack: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Walker:
    """Walks below one root; collects in ``bad`` what it did not follow."""

    def __init__(self, root: str, follow_outside: bool):
        self.root = os.path.realpath(root)
        self.follow_outside = follow_outside
        self.top = Folder("", (self.root,))
        self.bad: list[BadLink] = []

    def files(self, folder: Folder) -> Iterator[str]:
        """The path of every file below a folder, sorted by its folder, as text, then by name."""
        found, ahead = {}, [folder]
        while ahead:
            here = ahead.pop()
            folders, found[here.path] = self.listing(here)
            ahead += folders
        for path in sorted(found):
            yield from (f"{path}/{name}" for name in found[path])

    def listing(self, folder: Folder) -> tuple[list[Folder], list[str]]:
        """The folders in a folder, and the names of its files, both sorted."""
        folders, files = [], []
        real = folder.stack[-1]
        try:
            with os.scandir(real) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith(".") or name.lower() in IGNORED:
                        continue
                    target = os.path.join(real, name)
                    if entry.is_symlink():
                        target, reason = self.target(target, folder)
                        if reason:
                            self.bad.append(BadLink(_below(folder, name), reason))
                            continue
                    if entry.is_dir():
                        folders.append(Folder(_below(folder, name), (*folder.stack, target)))
                    elif entry.is_file():
                        files.append(name)
                    else:  # a pipe, at which a reader would wait forever
                        self.bad.append(BadLink(_below(folder, name), "is neither a file nor a folder"))
        except OSError as error:
            raise DataError(
                f"Expected to list {shown(real)}; found: {error.strerror}. Permit reading it, or remove it."
            ) from error
        return sorted(folders), sorted(files)

    def target(self, link: str, folder: Folder) -> tuple[str, str]:
        """Where a link leads, and why it must not be followed, if so."""
        try:
            target = os.path.realpath(link, strict=True)
        except FileNotFoundError:
            return link, "is a link that leads nowhere"
        except OSError:  # a link to itself, or a ring of links
            return link, "is a link that loops"
        if any(_inside(above, target) for above in folder.stack):
            return target, "is a link that loops"
        if not _inside(target, self.root) and not self.follow_outside:
            return target, "is a link that leaves the folder"
        return target, ""


def _below(folder: Folder, name: str) -> str:
    return f"{folder.path}/{name}" if folder.path else name


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
