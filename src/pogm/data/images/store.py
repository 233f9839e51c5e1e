"""Many images of one size as one file of pixels, which grows by chunks and can be mapped once it is whole.

A store is a folder of ``pixels`` (uint8 [N, 3, H, W]), ``journal`` (a line per chunk) and ``manifest.json``, which is
written last: without it there is no store, only chunks that a builder goes on from. Each chunk is on the disk before
its line is, so that a line vouches for its pixels.
"""

import json
import mmap
import os
import shutil
import sys
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pogm._system.errors import DataError, PogmError
from pogm._system.fault_injection import fault_point
from pogm._system.files import canonical_json, digest, read_json, readable_json, sync_folder, write_whole
from pogm.data.images.decode import Kind, Pixels

PIXELS, JOURNAL, MANIFEST = "pixels", "journal", "manifest.json"
VERSION = 1
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE: a file larger than memory can be mapped too


class Chunk(NamedTuple):
    """What the journal says of some files: which gave an image, of what original size, and which are bad, and why."""

    kept: list[int]
    sizes: list[tuple[int, int]]
    bad: list[tuple[int, Kind, str]]
    files: int  # looked at so far, by this chunk and those before it


def open_store(folder: Path) -> tuple[Tensor, list[Chunk]] | None:
    """The images [N, 3, H, W] and what is known of them; None where there is no whole store.

    The images are mapped: read when used, private to the process when written to, whatever their number.
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
    return torch.frombuffer(memory, dtype=torch.uint8).reshape(shape), _parsed(content)


class Builder:
    """Adds chunks to an unfinished store."""

    def __init__(self, folder: Path, height: int, width: int):
        self.folder, self.shape = folder, (3, height, width)
        if (folder / MANIFEST).exists():  # and yet the store could not be opened: nothing in it can be trusted
            for name in (MANIFEST, JOURNAL, PIXELS):
                (folder / name).unlink(missing_ok=True)
        self.images = self.files = 0
        vouched = 0
        (folder / PIXELS).touch()
        (folder / JOURNAL).touch()
        written = (folder / PIXELS).stat().st_size
        for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
            chunks = _parsed(line)
            if not chunks or (self.images + len(chunks[0].kept)) * prod(self.shape) > written:
                break
            self.images += len(chunks[0].kept)
            self.files = chunks[0].files
            vouched += len(line)
        os.truncate(folder / JOURNAL, vouched)
        os.truncate(folder / PIXELS, self.images * prod(self.shape))

    def expect_room(self, files: int) -> None:
        """Refuse to begin what the disk has no room for."""
        needed, free = files * prod(self.shape), shutil.disk_usage(self.folder).free
        if needed > free:
            raise _no_room(self.folder / PIXELS, needed, f"{free} bytes free")

    def add(self, pixels: list[Pixels], chunk: Chunk) -> None:
        """Write a chunk, then its line."""
        try:
            with open(self.folder / PIXELS, "ab") as file:
                for image in pixels:
                    file.write(image.data)
                fault_point("pixels")
                file.flush()
                os.fsync(file.fileno())
            with open(self.folder / JOURNAL, "ab") as file:
                file.write(canonical_json(chunk).encode() + b"\n")
                fault_point("journal")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            needed = len(pixels) * prod(self.shape)
            raise _no_room(self.folder / PIXELS, needed, error.strerror or str(error)) from error
        self.images += len(chunk.kept)
        self.files = chunk.files

    def finish(self) -> None:
        """Declare the store whole."""
        sync_folder(self.folder)
        journal = digest((self.folder / JOURNAL).read_bytes())
        manifest = {"version": VERSION, "shape": [self.images, *self.shape], "journal": journal}
        write_whole(self.folder / MANIFEST, readable_json(manifest))


def _parsed(journal: bytes) -> list[Chunk]:
    """The chunks of whole lines, up to the first that is not one."""
    chunks = []
    for line in journal.splitlines(keepends=True):
        try:
            fields: Any = json.loads(line) if line.endswith(b"\n") else None
            chunks.append(Chunk(*fields))
        except (ValueError, TypeError):
            break
    return chunks


def _no_room(path: Path, size: int, found: str) -> DataError:
    return DataError(
        f"Expected to write {size} bytes to {path}; found: {found}. "
        "What was decoded so far is kept; free some space, or set POGM_CACHE to a folder that has it, then start again."
    )
