"""What each image file is: the hash of its content and its size, remembered between starts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pogm._system.files import canonical_json, digest, write_whole
from pogm.data.images.cache_directory import alone_in, cache_folder
from pogm.data.images.class_folders import Tree
from pogm.data.images.decode import BadImage, Kind, size_of
from pogm.data.images.parallel import Progress, in_order, unseen

VERSION = 1  # to be raised when the same bytes may give another record


class Record(NamedTuple):
    """One file: its SHA-256, then its height and width, or the kind and reason why its header is that of no image."""

    sha256: str
    height: int = 0
    width: int = 0
    kind: Kind | None = None
    reason: str = ""


Stamp = tuple[int, int, int]  # a file's size, and when its content (mtime) and its entry (ctime) changed
Known = dict[str, tuple[Stamp, Record]]


def index_of(tree: Tree, folder: Path | None = None, progress: Progress = unseen) -> list[Record]:
    """A record of every file, in the tree's order. Files that are as they were at the last start are not read again.

    Only headers are parsed: damage behind them shows when the image is decoded.
    """
    path = _path(tree.root, folder or cache_folder())
    paths = [file.path for file in tree.files]
    known = _load(path)
    stamps = [_stamp(tree.root, name) for name in paths]
    changed = [name for name, stamp in zip(paths, stamps, strict=True) if known.get(name, (None,))[0] != stamp]
    kept = known.keys() & set(paths)
    index: Known = {name: known[name] for name in kept}
    try:
        found = in_order(lambda name: (name, *_read(tree.root, name)), changed)
        for name, stamp, record in progress(found, len(changed)):
            index[name] = (stamp, record)
    finally:  # what an interrupted start has read is not lost
        if changed or len(kept) < len(known):
            _save(path, {name: entry for name, entry in index.items() if entry[1].kind != "unreadable"})
    return [index[name][1] for name in paths]


def fingerprint(tree: Tree, index: Sequence[Record] | None = None) -> str:
    """A hash of every image with its domain and class, in order: the same wherever the folder lies."""
    index = index_of(tree) if index is None else index
    files = zip(tree.files, index, strict=True)
    listed = [(tree.domains[file.domain], tree.classes[file.label], record.sha256) for file, record in files]
    return digest(canonical_json(listed).encode())


def _read(root: Path, name: str) -> tuple[Stamp, Record]:
    stamp = _stamp(root, name)  # before the content: a change while reading makes the record old, not wrong
    try:
        content = (root / name).read_bytes()
    except OSError as error:
        return stamp, Record("", kind="unreadable", reason=error.strerror or str(error))
    try:
        return stamp, Record(digest(content), *size_of(content, name))
    except BadImage as error:
        return stamp, Record(digest(content), kind=error.kind, reason=error.reason)


def _stamp(root: Path, name: str) -> Stamp:
    try:
        status = os.stat(os.path.join(root, name))
    except OSError:
        return (-1, -1, -1)  # reading will say why
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _path(root: Path, folder: Path) -> Path:
    place = os.fsencode(os.path.realpath(root))
    return folder / "indexes" / f"{digest(place)}.json"


def _load(path: Path) -> Known:
    """What is remembered; nothing, if the file is missing, damaged or of another version."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    seal, _, body = content.partition(b"\n")
    if seal != _seal(body):
        return {}
    return {name: ((size, mtime, ctime), Record(*rest)) for name, size, mtime, ctime, *rest in json.loads(body)}


def _save(path: Path, index: Known) -> None:
    body = json.dumps([[name, *stamp, *record] for name, (stamp, record) in index.items()]).encode()
    with alone_in(path.parent):  # two that write the same file would take each other's temporary one
        write_whole(path, _seal(body) + b"\n" + body)


def _seal(body: bytes) -> bytes:
    return f"{VERSION} {digest(body)}".encode()
