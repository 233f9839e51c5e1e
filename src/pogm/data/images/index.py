"""Index of an image folder: content hash and size of every file, stored in the cache between runs."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pogm._system.collector import pause_collector
from pogm._system.files import canonical_json, digest, write_atomic
from pogm.data.images.class_folders import ImageTree
from pogm.data.images.decode import BadImage, Kind, read_header, read_levels
from pogm.data.images.image_listing import Listing
from pogm.data.images.intensity import Levels
from pogm.data.images.parallel import Progress, map_in_order, no_progress
from pogm.data.images.store import cache_directory, lock_directory

VERSION = 3  # raise it when the same bytes may give another record, or when the format of the file changes
HASH = 64  # digits of a SHA-256


class FileRecord(NamedTuple):
    """One file: its SHA-256, and its height and width or, if its header is bad, the kind and reason.

    For an image with more than 8 bits per channel, also the range of its intensities (None if it cannot be decoded).
    """

    sha256: str
    height: int = 0
    width: int = 0
    kind: Kind | None = None
    reason: str = ""
    is_wide: bool = False  # more than 8 bits per channel
    levels: Levels | None = None


FILE_BYTES = 1 << 17  # bytes that are read and hashed in the time that a file takes besides
Stamp = tuple[int, int, int]  # size, mtime and ctime of a file
Entries = dict[str, tuple[Stamp, FileRecord]]


def read_index(tree: ImageTree, cache: Path | None = None, progress: Progress = no_progress) -> list[FileRecord]:
    """Return a record of every file, in the order of the tree. Files that did not change are not read again.

    Only headers are parsed, and images with more than 8 bits per channel are decoded to measure their intensities.
    Damage behind the header is found when the image is decoded.

    Args:
        tree: Listing of the folder.
        cache: Directory of the cache; the default one if None.
        progress: Shows how many of the changed files were read.
    """
    path = _index_path(tree.root, cache or cache_directory())
    names = [file.path for file in tree.files]
    known_names, known_stamps, known_records = _load(path)
    root = os.fspath(tree.root)
    stamps = [_read_stamp(root, name) for name in names]
    if names == known_names and stamps == known_stamps:
        return known_records
    known = dict(zip(known_names, zip(known_stamps, known_records, strict=True), strict=True))
    changed = [name for name, stamp in zip(names, stamps, strict=True) if known.get(name, (None,))[0] != stamp]
    kept = known.keys() & set(names)
    index: Entries = {name: known[name] for name in names if name in kept}
    try:
        found = map_in_order(lambda name: (name, *_read(tree.root, name)), changed)
        sizes = dict(zip(names, stamps, strict=True))
        work = [sizes[name][0] + FILE_BYTES for name in changed]
        for name, stamp, record in progress(found, len(changed), what="files", work=work):
            index[name] = (stamp, record)
    finally:  # an interrupted run keeps what it has read
        _save(path, {name: index[name] for name in names if name in index and index[name][1].kind != "unreadable"})
    return [index[name][1] for name in names]


def fingerprint(tree: ImageTree, index: Sequence[FileRecord]) -> str:
    """Return a hash of every image with its domain and class, in order. It does not depend on the folder's path.

    Groups and splits of a metadata file are included.
    """
    files = zip(tree.files, index, strict=True)
    listed = [(tree.domains[file.domain], tree.classes[file.label], record.sha256) for file, record in files]
    given = {name: values for name, values in (("groups", tree.groups), ("splits", tree.splits)) if values}
    return digest(canonical_json([listed, given] if given else listed).encode())


class FolderScan:
    """Listing, index and fingerprint of one image folder or metadata file, each read at most once."""

    def __init__(self, listing: Listing):
        self.listing = listing
        self._tree: ImageTree | None = None
        self._index: list[FileRecord] | None = None
        self.loaded: dict[tuple[str, str], Any] = {}  # decoded images, by the settings of the dataset that loaded them

    @property
    def tree(self) -> ImageTree:
        """List of the images."""
        return self.list_images()

    def list_images(self, progress: Progress = no_progress) -> ImageTree:
        """Return the list of the images."""
        if self._tree is None:
            with pause_collector():
                self._tree = self.listing.read(progress=progress)
        return self._tree

    def index(self, progress: Progress = no_progress) -> list[FileRecord]:
        """Return a record of every file, in the order of the tree."""
        if self._index is None:
            tree = self.list_images(progress)
            with pause_collector():
                self._index = read_index(tree, progress=progress)
        return self._index

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content, see `fingerprint`."""
        return fingerprint(self.tree, self.index())


_scans: ContextVar[dict[Listing, FolderScan] | None] = ContextVar("scans", default=None)


@contextmanager
def reuse_scans() -> Iterator[None]:
    """Scan each image folder at most once while the block (or the decorated function) runs.

    A run needs the listing and the index of its dataset to create the trial, to build the cache, to load the images and
    to describe them in its record. All of them must see the same state of the folder, and reading it once is faster. A
    block inside another block uses the scans of the outer one.
    """
    if _scans.get() is not None:
        yield
        return
    token = _scans.set({})
    try:
        yield
    finally:
        _scans.reset(token)


def forget_scans() -> None:
    """Free the memory of the scans of the current `reuse_scans` block: half a kilobyte for each image."""
    scans = _scans.get()
    if scans is not None:
        scans.clear()


def scan_folder(source: Path | Listing) -> FolderScan:
    """Return the scan of an image folder or a listing: the existing one inside `reuse_scans`, else a new one."""
    listing = Listing(source) if isinstance(source, Path) else source
    scans = _scans.get()
    if scans is None:
        return FolderScan(listing)
    return scans.setdefault(replace(listing, path=listing.path.absolute()), FolderScan(listing))


def _read(root: Path, name: str) -> tuple[Stamp, FileRecord]:
    stamp = _read_stamp(os.fspath(root), name)  # before the content: if the file changes, the record is outdated
    try:
        content = (root / name).read_bytes()
    except OSError as error:
        return stamp, FileRecord("", kind="unreadable", reason=error.strerror or str(error))
    try:
        header = read_header(content, name)
        levels = read_levels(content, name) if header.is_wide else None
        return stamp, FileRecord(digest(content), header.height, header.width, None, "", header.is_wide, levels)
    except BadImage as error:
        return stamp, FileRecord(digest(content), kind=error.kind, reason=error.reason)


def _read_stamp(root: str, name: str) -> Stamp:
    try:
        status = os.stat(f"{root}/{name}")
    except OSError:
        return (-1, -1, -1)  # reading the file will give the reason
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _index_path(root: Path, cache: Path) -> Path:
    name = digest(os.fsencode(os.path.realpath(root)))
    return cache / "indexes" / f"{name}.json"


def _load(path: Path) -> tuple[list[str], list[Stamp], list[FileRecord]]:
    """Load a stored index; return an empty one if the file is missing, damaged or of another version."""
    try:
        content = path.read_bytes()
    except OSError:
        return [], [], []
    checksum, _, body = content.partition(b"\n")
    if checksum != _checksum(body):
        return [], [], []
    columns = json.loads(body)
    hashes = [columns["sha256"][start : start + HASH] for start in range(0, len(columns["sha256"]), HASH)]
    records = list(map(FileRecord, hashes, columns["heights"], columns["widths"]))
    for number, kind, reason, is_wide, levels in columns["unusual"]:
        rest = {"kind": kind, "reason": reason, "is_wide": is_wide, "levels": levels and Levels(*levels)}
        records[number] = records[number]._replace(**rest)
    stamps = list(zip(columns["sizes"], columns["mtimes"], columns["ctimes"], strict=True))
    return columns["names"], stamps, records


def _save(path: Path, index: Entries) -> None:
    """Write an index by columns, which take a tenth of the time to read that a list of records takes."""
    stamps, records = [stamp for stamp, _ in index.values()], [record for _, record in index.values()]
    sizes, mtimes, ctimes = zip(*stamps, strict=True) if stamps else ((), (), ())
    columns = {
        "names": list(index),
        "sizes": sizes,
        "mtimes": mtimes,
        "ctimes": ctimes,
        "sha256": "".join(record.sha256 for record in records),
        "heights": [record.height for record in records],
        "widths": [record.width for record in records],
        "unusual": [(n, *record[3:]) for n, record in enumerate(records) if record[3:] != (None, "", False, None)],
    }
    body = json.dumps(columns).encode()
    with lock_directory(path.parent):  # two writers of the same file would use the same temporary file
        write_atomic(path, _checksum(body) + b"\n" + body)


def _checksum(body: bytes) -> bytes:
    return f"{VERSION} {digest(body)}".encode()
