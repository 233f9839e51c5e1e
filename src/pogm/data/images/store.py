"""The cache on disk: its directory, its locks, and the stores of decoded images.

A store holds images of one size in a directory of three files: ``pixels`` (uint8 [N, 3, H, W]), ``journal`` (one line
per chunk of files) and ``manifest.json``. The manifest is written last. Without it the store is unfinished, and a
builder continues after its last chunk. The pixels of a chunk are synced to the disk before its line, so every line in
the journal has its pixels.
"""

import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pogm._system.errors import DataError, PogmError, UsageError
from pogm._system.fault_injection import fault_point
from pogm._system.files import (
    canonical_json,
    digest,
    lock_folder,
    open_own_file,
    read_json,
    readable_json,
    sync_folder,
    write_atomic,
)
from pogm.data.images.decode import Kind, Pixels

PIXELS, JOURNAL, MANIFEST = "pixels", "journal", "manifest.json"
VERSION = 1
CACHE_VARIABLE = "POGM_CACHE"
POLL_SECONDS = 0.2  # between two attempts to lock a directory
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE: allows to map a file larger than memory


def cache_directory() -> Path:
    """Return the directory of the cache: $POGM_CACHE, or ``~/.cache/pogm``."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "pogm")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Create a directory in the cache and lock it while the block runs; wait while another process has the lock."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _permission_error(f"make the folder {directory}", error) from error
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(directory))
                break
            except UsageError:
                time.sleep(POLL_SECONDS)
            except OSError as error:
                raise _permission_error(f"write to the folder {directory}", error) from error
        yield


class Chunk(NamedTuple):
    """One line of the journal: which files gave an image, their original sizes, and which files are bad, and why."""

    kept: list[int]
    sizes: list[tuple[int, int]]
    bad: list[tuple[int, Kind, str]]
    files: int  # number of files processed by this chunk and all before it


def open_store(folder: Path) -> tuple[Tensor, list[Chunk]] | None:
    """Return the images [N, 3, H, W] and the journal of a store; None if there is no finished store.

    The images are memory-mapped: pixels are read from the disk when they are used, and changes stay in this process.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        shape = tuple(manifest["shape"])
        if manifest["version"] != VERSION or (folder / PIXELS).stat().st_size != prod(shape):
            return None
        content = (folder / JOURNAL).read_bytes()
        if digest(content) != manifest["journal"]:
            return None
        with open(folder / PIXELS, "rb") as file:
            access = {"flags": mmap.MAP_PRIVATE | NO_RESERVE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
            memory = mmap.mmap(file.fileno(), 0, **access)
    except (OSError, PogmError, LookupError, TypeError):
        return None
    return torch.frombuffer(memory, dtype=torch.uint8).reshape(shape), _parse(content)


class StoreBuilder:
    """Writer of an unfinished store; continues after the last complete chunk."""

    def __init__(self, folder: Path, height: int, width: int):
        self.folder, self.shape = folder, (3, height, width)
        if (folder / MANIFEST).exists():  # the store was finished but cannot be opened: it is damaged, so start again
            for name in (MANIFEST, JOURNAL, PIXELS):
                (folder / name).unlink(missing_ok=True)
        self.images = self.files = 0
        valid = 0
        for name in (PIXELS, JOURNAL):
            open(folder / name, "ab", opener=open_own_file).close()
        written = (folder / PIXELS).stat().st_size
        for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
            chunks = _parse(line)
            if not chunks or (self.images + len(chunks[0].kept)) * prod(self.shape) > written:
                break
            self.images += len(chunks[0].kept)
            self.files = chunks[0].files
            valid += len(line)
        os.truncate(folder / JOURNAL, valid)
        os.truncate(folder / PIXELS, self.images * prod(self.shape))

    def check_space(self, files: int) -> None:
        """Raise if the disk has no space for so many more images."""
        needed, free = files * prod(self.shape), shutil.disk_usage(self.folder).free
        if needed > free:
            raise _space_error(self.folder / PIXELS, needed, f"{free} bytes free")

    def add(self, pixels: list[Pixels], chunk: Chunk) -> None:
        """Append the pixels of a chunk, then its line in the journal."""
        try:
            with open(self.folder / PIXELS, "ab", opener=open_own_file) as file:
                for image in pixels:
                    file.write(image.data)
                fault_point("pixels")
                file.flush()
                os.fsync(file.fileno())
            with open(self.folder / JOURNAL, "ab", opener=open_own_file) as file:
                file.write(canonical_json(chunk).encode() + b"\n")
                fault_point("journal")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            needed = len(pixels) * prod(self.shape)
            raise _space_error(self.folder / PIXELS, needed, error.strerror or str(error)) from error
        self.images += len(chunk.kept)
        self.files = chunk.files

    def finish(self) -> None:
        """Write the manifest: the store is complete."""
        sync_folder(self.folder)
        journal = digest((self.folder / JOURNAL).read_bytes())
        manifest = {"version": VERSION, "shape": [self.images, *self.shape], "journal": journal}
        write_atomic(self.folder / MANIFEST, readable_json(manifest))


def _parse(journal: bytes) -> list[Chunk]:
    """Parse the lines of a journal up to the first damaged one."""
    chunks = []
    for line in journal.splitlines(keepends=True):
        try:
            fields: Any = json.loads(line) if line.endswith(b"\n") else None
            chunks.append(Chunk(*fields))
        except (ValueError, TypeError):
            break
    return chunks


def _space_error(path: Path, size: int, found: str) -> DataError:
    return DataError(
        f"Expected to write {size} bytes to {path}; found: {found}. "
        "The images decoded so far are kept. Free some space, or set POGM_CACHE to a larger disk, then start again."
    )


def _permission_error(action: str, error: OSError) -> DataError:
    return DataError(
        f"Expected to {action}; found: {error.strerror}. "
        f"Permit writing there, or set {CACHE_VARIABLE} to another folder."
    )
