"""Cache of decoded images. Images are decoded once, resized to one size, and stored under a hash of their content.

Two folders with the same images share one cache entry. If images of a folder were renamed, added or removed, its new
entry takes the images that an older entry has from there, and only the others are decoded.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError, unknown_name_error
from pogm._system.files import canonical_json, digest, write_atomic
from pogm._system.messages import log, log_time
from pogm._system.terminal import printable
from pogm.data.images.class_folders import ImageTree
from pogm.data.images.decode import BadImage, Kind, Pixels, decode
from pogm.data.images.index import FileRecord, read_index
from pogm.data.images.intensity import NONE, Intensity, resolve
from pogm.data.images.parallel import Progress, map_in_order, no_progress
from pogm.data.images.store import Chunk, StoreBuilder, cache_directory, lock_directory, open_store

REFUSE, SKIP, PAD = ON_BAD_IMAGE = ("refuse", "skip", "pad")
VERSION = 1  # raise it when the same files may give other pixels
FILE_PIXELS = 100_000  # pixels that are decoded in the time that a file takes besides; measured with JPEG
LARGEST = 256  # longest side of a stored image, in pixels
CHUNK = 256  # decoded files per chunk; a killed build continues after its last complete chunk
COPIES = 4096  # files per chunk if most of them are copied from another entry
UNREADABLE = ""  # in place of the hash of a file that could not be read
CONTENTS = "contents.json"  # description of an entry: its settings, and the hash of every file in order
LISTED = 5  # bad files that a message names


class BadFile(NamedTuple):
    """A file that could not be decoded completely."""

    path: str
    kind: Kind
    reason: str


@dataclass(frozen=True)
class CachedImages:
    """Decoded images of a folder."""

    images: Tensor  # [N, 3, H, W] uint8, memory-mapped
    sizes: Tensor  # [N, 2] original heights and widths
    kept: list[int]  # index of each image in the files of the tree
    bad: list[BadFile]  # files that were skipped or padded
    intensity: Intensity = NONE  # scaling of the images with more than 8 bits per channel


def load_cached(
    tree: ImageTree,
    on_bad_image: str = REFUSE,
    *,
    intensity: Intensity = NONE,
    index: Sequence[FileRecord] | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> CachedImages:
    """Load the images of a folder from the cache; decode them first, on all cores, if they are not there.

    A build that was killed continues after its last complete chunk. If two processes need the same entry, one builds it
    and the other waits.

    Args:
        tree: Listing of the folder.
        on_bad_image: "refuse" raises an error; "skip" leaves bad images out; "pad" fills the missing part of truncated
            images and refuses all others.
        intensity: Scaling of images with more than 8 bits per channel.
        index: Index of the folder; read if None.
        cache: Directory of the cache; the default one if None.
        progress: Shows how many files were decoded.

    Raises:
        DataError: If an image is refused, no image is left, or the disk is full.
    """
    if on_bad_image not in ON_BAD_IMAGE:
        raise unknown_name_error("on_bad_image", on_bad_image, ON_BAD_IMAGE)
    cache = cache or cache_directory()
    index = read_index(tree, cache, progress) if index is None else index
    if on_bad_image != SKIP:
        pairs = zip(tree.files, index, strict=True)
        _refuse(tree, [BadFile(file.path, record.kind, record.reason) for file, record in pairs if record.kind])
    height, width = stored_size(tree, index)
    contents = [record.sha256 for record in index]
    intensity = resolve_intensity(intensity, index)
    scaled = [] if intensity == NONE else [str(intensity)]  # images of 8 bits keep the key of earlier versions
    description = canonical_json([VERSION, height, width, on_bad_image, contents, *scaled]).encode()
    directory = cache / "images" / digest(description)

    found = open_store(directory)
    log.info("Image cache of %s: %s, %s", tree.root, directory, "to be written" if found is None else "found")
    if found is None:
        with lock_directory(directory):
            found = open_store(directory)
            if found is None:  # no other process built it while this one waited
                known = _find_decoded(directory, description)
                with log_time("Decoded %d images", len(tree.files)):
                    pixels = [record.height * record.width for record in index]
                    build = _Build(tree, contents, pixels, height, width, on_bad_image, intensity, known)
                    build.run(directory, progress)
                found = open_store(directory)
    with suppress(OSError, DataError):  # in a cache that cannot be written to, other entries do not use this one
        if not (directory / CONTENTS).exists():
            write_atomic(directory / CONTENTS, description)
    if found is None:
        raise DataError(f"Expected the images just written to {directory}; found them changed. Start again.")
    images, chunks = found
    return CachedImages(
        images=images,
        sizes=torch.tensor([size for chunk in chunks for size in chunk.sizes], dtype=torch.int64),
        kept=[number for chunk in chunks for number in chunk.kept],
        bad=[BadFile(tree.files[number].path, kind, reason) for chunk in chunks for number, kind, reason in chunk.bad],
        intensity=intensity,
    )


def resolve_intensity(intensity: Intensity, index: Sequence[FileRecord]) -> Intensity:
    """Return the scaling with the range of a dataset; `NONE` if all of its images have 8 bits per channel."""
    if not any(record.is_wide for record in index):
        return NONE
    return resolve(intensity, (record.levels for record in index if record.levels is not None))


def stored_size(tree: ImageTree, index: Sequence[FileRecord]) -> tuple[int, int]:
    """Return the height and width of stored images: the original size if all share one of at most 256, else 256."""
    sizes = {(record.height, record.width) for record in index if record.kind is None}
    if not sizes:
        raise DataError(
            f"Expected images in {printable(str(tree.root))}; found none that can be read. "
            f"See: pogm data check {printable(str(tree.root))}"
        )
    height, width = max(sizes)
    is_small = len(sizes) == 1 and max(height, width) <= LARGEST
    return (height, width) if is_small else (LARGEST, LARGEST)


class _Decoded(NamedTuple):
    """Result of decoding a file: pixels [3, H, W], an error, or both if the image was padded."""

    number: int
    pixels: Pixels | None
    size: tuple[int, int]
    error: BadImage | None


def _find_decoded(directory: Path, description: bytes) -> dict[str, _Decoded]:
    """Return the images that other entries of the cache have, by hash, if only the list of images differs.

    The name of an entry is the hash of its description, so a damaged description is found out and the entry is not
    used.
    """
    *settings, contents, scaled = _parse_description(description)
    wanted = set(contents) - {UNREADABLE}
    found: dict[str, _Decoded] = {}
    for path in sorted(directory.parent.glob(f"*/{CONTENTS}")):
        with suppress(OSError):
            other = path.read_bytes()
            if digest(other) != path.parent.name:
                continue
            *other_settings, other_contents, other_scaled = _parse_description(other)
            if (other_settings, other_scaled) != (settings, scaled) or wanted.isdisjoint(other_contents):
                continue
            images, chunks = open_store(path.parent) or (None, [])
            if images is not None:
                found |= _decoded_by_hash(images.numpy(), chunks, other_contents)
    return {content: decoded for content, decoded in found.items() if content in wanted}


def _parse_description(description: bytes) -> tuple[Any, ...]:
    version, height, width, on_bad_image, contents, *scaled = json.loads(description)
    return version, height, width, on_bad_image, contents, scaled


def _decoded_by_hash(pixels: Pixels, chunks: Sequence[Chunk], contents: Sequence[str]) -> dict[str, _Decoded]:
    errors = {number: BadImage("", kind, reason) for chunk in chunks for number, kind, reason in chunk.bad}
    kept = [(number, size) for chunk in chunks for number, size in zip(chunk.kept, chunk.sizes, strict=True)]
    found = {
        contents[number]: _Decoded(number, image, (size[0], size[1]), errors.pop(number, None))
        for (number, size), image in zip(kept, pixels, strict=True)
    }
    bad = {number: error for number, error in errors.items() if error.kind != "unreadable"}  # it may be readable now
    return found | {contents[number]: _Decoded(number, None, (0, 0), error) for number, error in bad.items()}


@dataclass(frozen=True)
class _Build:
    """Builder of one cache entry from the files of a folder with known content hashes."""

    tree: ImageTree
    contents: list[str]
    pixels: list[int]  # number of pixels of each file
    height: int
    width: int
    on_bad_image: str
    intensity: Intensity
    known: Mapping[str, _Decoded]  # images that another entry has, by hash

    def run(self, directory: Path, progress: Progress) -> None:
        """Decode the files that the store in this directory does not have yet, and finish the store."""
        builder = StoreBuilder(directory, self.height, self.width)
        left = range(builder.files, len(self.tree.files))
        builder.check_space(len(left))
        missing = [number for number in left if self.contents[number] not in self.known]
        work = [self.pixels[number] + FILE_PIXELS for number in missing]
        new = iter(progress(map_in_order(self.decode_file, missing), len(missing), work=work))
        pending: list[_Decoded] = []
        decoded = 0
        for number in left:
            copied = self.copy_image(number)
            decoded += copied is None
            pending.append(copied or next(new))
            if decoded == CHUNK or len(pending) == COPIES or number == left[-1]:
                self.add_chunk(builder, pending)
                pending, decoded = [], 0
        next(new, None)  # ends the progress
        if not builder.images:
            raise DataError(
                f"Expected images in {printable(str(self.tree.root))}; found none that can be decoded. "
                f"See: pogm data check {printable(str(self.tree.root))}"
            )
        builder.finish()

    def copy_image(self, number: int) -> _Decoded | None:
        """Return the image of another entry with the content of this file; None if there is none."""
        known = self.known.get(self.contents[number])
        if known is None:
            return None
        error = known.error and BadImage(self.tree.files[number].path, known.error.kind, known.error.reason)
        return known._replace(number=number, error=error)

    def add_chunk(self, builder: StoreBuilder, pending: list[_Decoded]) -> None:
        """Write a chunk of files, unless one of them must be refused."""
        wrong = [(decoded, decoded.error) for decoded in pending if decoded.error is not None]
        if self.on_bad_image != SKIP:
            refused = [error for decoded, error in wrong if decoded.pixels is None]
            _refuse(self.tree, [BadFile(error.name, error.kind, error.reason) for error in refused])
        good = [decoded for decoded in pending if decoded.pixels is not None]
        chunk = Chunk(
            kept=[decoded.number for decoded in good],
            sizes=[decoded.size for decoded in good],
            bad=[(decoded.number, error.kind, error.reason) for decoded, error in wrong],
            files=pending[-1].number + 1,
        )
        builder.add([decoded.pixels for decoded in good if decoded.pixels is not None], chunk)

    def decode_file(self, number: int) -> _Decoded:
        """Read, decode and resize one file."""
        name = self.tree.files[number].path
        content = b""
        try:
            try:
                content = (self.tree.root / name).read_bytes()
            except OSError as error:
                raise BadImage(name, "unreadable", error.strerror or str(error)) from error
            if digest(content) != self.contents[number]:
                raise DataError(
                    f"Expected {printable(name)} as it was when the folder was indexed; found it changed. "
                    "Start again when nothing writes to the folder."
                )
            return self.resize(number, decode(content, name, intensity=self.intensity), None)
        except BadImage as error:
            if self.on_bad_image == PAD and error.kind == "truncated":
                try:
                    pixels = decode(content, name, truncated="pad", intensity=self.intensity)
                    return self.resize(number, pixels, error)
                except BadImage:  # truncated in its header: there are no pixels to keep
                    pass
            return _Decoded(number, None, (0, 0), error)

    def resize(self, number: int, pixels: Pixels, error: BadImage | None) -> _Decoded:
        """Resize an image to the stored size and put its channels first."""
        from PIL import Image

        size = pixels.shape[:2]
        if size != (self.height, self.width):
            image = Image.fromarray(pixels).resize((self.width, self.height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
        return _Decoded(number, np.ascontiguousarray(pixels.transpose(2, 0, 1)), (size[0], size[1]), error)


def _refuse(tree: ImageTree, bad: Sequence[BadFile]) -> None:
    """Raise an error that names the bad files, if there are any."""
    if bad:
        named = "; ".join(f"{printable(path)} ({kind}: {printable(reason)})" for path, kind, reason in bad[:LISTED])
        more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        raise DataError(
            f"Expected an image in every file of {printable(str(tree.root))}; found {named}{more}. List all of them "
            "with `pogm data check`, or leave them out with --on-bad-image skip."
        )
