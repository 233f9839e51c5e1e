"""Directory listings without hidden files, in which symbolic links are followed only where that is safe.

Only the directory entries are read; other system calls are made for links only. A million files take seconds.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from pogm._system.errors import DataError
from pogm._system.terminal import printable

IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}  # files of operating systems, besides names that begin with a dot


class BadLink(NamedTuple):
    """A link that was not followed, or an entry that is neither file nor folder, and the reason."""

    path: str
    reason: str


class Directory(NamedTuple):
    """A directory: its path below the root, and the real paths of all directories above it and of itself."""

    path: str
    stack: tuple[str, ...]

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


class Walker:
    """Lists directories below one root, and collects in `bad` what it did not follow."""

    def __init__(self, root: str, follow_outside: bool = False):
        self.root = os.path.realpath(root)
        self.follow_outside = follow_outside
        self.top = Directory("", (self.root,))
        self.bad: list[BadLink] = []

    def walk_files(self, directory: Directory) -> Iterator[str]:
        """Yield the path of every file below a directory, sorted by the path of its directory, then by name."""
        found, ahead = {}, [directory]
        while ahead:
            current = ahead.pop()
            directories, found[current.path] = self.list_directory(current)
            ahead += directories
        for path in sorted(found):
            yield from (f"{path}/{name}" for name in found[path])

    def list_directory(self, directory: Directory) -> tuple[list[Directory], list[str]]:
        """Return the directories in a directory and the names of its files, both sorted."""
        directories, files = [], []
        real = directory.stack[-1]
        try:
            with os.scandir(real) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith(".") or name.lower() in IGNORED:
                        continue
                    target = entry.path
                    if entry.is_symlink():
                        target, reason = self._resolve_link(target, directory)
                        if reason:
                            self.bad.append(BadLink(_join(directory, name), reason))
                            continue
                    if entry.is_file():
                        files.append(name)
                    elif entry.is_dir():
                        directories.append(Directory(_join(directory, name), (*directory.stack, target)))
                    else:  # a pipe, for example: reading it would block forever
                        self.bad.append(BadLink(_join(directory, name), "is neither a file nor a folder"))
        except OSError as error:
            raise DataError(
                f"Expected to list {printable(real)}; found: {error.strerror}. Permit reading it, or remove it."
            ) from error
        return sorted(directories), sorted(files)

    def _resolve_link(self, link: str, directory: Directory) -> tuple[str, str]:
        """Return the target of a link, and the reason why it must not be followed (empty if it may)."""
        try:
            target = os.path.realpath(link, strict=True)
        except FileNotFoundError:
            return link, "is a link that leads nowhere"
        except OSError:  # a link to itself, or a ring of links
            return link, "is a link that loops"
        if any(_is_inside(above, target) for above in directory.stack):
            return target, "is a link that loops"
        if not _is_inside(target, self.root) and not self.follow_outside:
            return target, "is a link that leaves the folder"
        return target, ""


def _join(directory: Directory, name: str) -> str:
    return f"{directory.path}/{name}" if directory.path else name


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
