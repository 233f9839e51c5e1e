"""Images decoded once, squeezed to one size, and kept by their content: two folders of the same images share them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError, unknown
from pogm._system.files import canonical_json, digest
from pogm.data.images.cache_directory import alone_in
from pogm.data.images.cache_directory import cache_folder as cache_folder
from pogm.data.images.class_folders import Tree
from pogm.data.images.decode import BadImage, Kind, Pixels, decode
from pogm.data.images.index import Record, index_of
from pogm.data.images.names import shown
from pogm.data.images.parallel import Progress, in_order, unseen
from pogm.data.images.store import Builder, Chunk, open_store

REFUSE, SKIP, PAD = ON_BAD_IMAGE = ("refuse", "skip", "pad")
VERSION = 1  # to be raised when the same files may give other pixels
LARGEST = 256  # pixels of a side that are kept
CHUNK = 256  # files after which a killed build goes on
LISTED = 5  # bad files a message names


class Bad(NamedTuple):
    """A file that gave no whole image."""

    path: str
    kind: Kind
    reason: str


@dataclass(frozen=True)
class Cached:
    """The images of a tree.

    ``images`` [N, 3, H, W] is uint8, mapped and not read; ``sizes`` [N, 2] is the height and width that each had;
    ``kept`` says which of the tree's files they are. ``bad`` are the files that were skipped or padded.
    """

    images: Tensor
    sizes: Tensor
    kept: list[int]
    bad: list[Bad]


def cached(
    tree: Tree,
    on_bad_image: str = REFUSE,
    *,
    index: Sequence[Record] | None = None,
    folder: Path | None = None,
    progress: Progress = unseen,
) -> Cached:
    """The images of a tree, out of the cache in ``folder``; decoded first, by all cores, if they are not there.

    Bad images are refused, skipped, or, where only their end is missing, padded; other damage cannot be padded and is
    refused then too. A build that was killed goes on where it was; of two at once, one builds and the other waits.
    """
    if on_bad_image not in ON_BAD_IMAGE:
        raise unknown("on_bad_image", on_bad_image, ON_BAD_IMAGE)
    folder = folder or cache_folder()
    index = index_of(tree, folder, progress) if index is None else index
    if on_bad_image != SKIP:
        numbered = zip(tree.files, index, strict=True)
        _refuse(tree, [Bad(file.path, record.kind, record.reason) for file, record in numbered if record.kind])
    height, width = stored_size(tree, index)
    contents = [record.sha256 for record in index]
    key = digest(canonical_json([VERSION, height, width, on_bad_image, contents]).encode())
    place = folder / "images" / key

    found = open_store(place)
    if found is None:
        with alone_in(place):
            found = open_store(place)
            if found is None:  # nobody built it while we waited
                _Build(tree, contents, height, width, on_bad_image).into(place, progress)
                found = open_store(place)
    if found is None:
        raise DataError(f"Expected the images just written to {place}; found them changed. Start again.")
    images, chunks = found
    return Cached(
        images=images,
        sizes=torch.tensor([size for chunk in chunks for size in chunk.sizes], dtype=torch.int64),
        kept=[number for chunk in chunks for number in chunk.kept],
        bad=[Bad(tree.files[number].path, kind, reason) for chunk in chunks for number, kind, reason in chunk.bad],
    )


def stored_size(tree: Tree, index: Sequence[Record]) -> tuple[int, int]:
    """The height and width that images are kept at: their own, if it is one for all and small; else the largest."""
    sizes = {(record.height, record.width) for record in index if record.kind is None}
    if not sizes:
        raise DataError(
            f"Expected images in {shown(str(tree.root))}; found none that can be read. "
            f"See: pogm data check {shown(str(tree.root))}"
        )
    height, width = max(sizes)
    own = len(sizes) == 1 and max(height, width) <= LARGEST
    return (height, width) if own else (LARGEST, LARGEST)


class _Decoded(NamedTuple):
    """What a file gave: pixels [3, H, W], an error, or, if it was padded, both."""

    number: int
    pixels: Pixels | None
    size: tuple[int, int]
    error: BadImage | None


@dataclass(frozen=True)
class _Build:
    """The decoding of a tree whose files had those contents."""

    tree: Tree
    contents: list[str]
    height: int
    width: int
    on_bad_image: str

    def into(self, place: Path, progress: Progress) -> None:
        """Decode what the store there still lacks."""
        builder = Builder(place, self.height, self.width)
        left = range(builder.files, len(self.tree.files))
        builder.expect_room(len(left))
        some: list[_Decoded] = []
        for decoded in progress(in_order(self.decoded, left), len(left)):
            some.append(decoded)
            if len(some) == CHUNK or decoded.number == left[-1]:
                self.add(builder, some)
                some = []
        if not builder.images:
            raise DataError(
                f"Expected images in {shown(str(self.tree.root))}; found none that can be decoded. "
                f"See: pogm data check {shown(str(self.tree.root))}"
            )
        builder.finish()

    def add(self, builder: Builder, some: list[_Decoded]) -> None:
        """Write a chunk of files, unless one must be refused."""
        wrong = [(decoded, decoded.error) for decoded in some if decoded.error is not None]
        if self.on_bad_image != SKIP:
            refused = [error for decoded, error in wrong if decoded.pixels is None]
            _refuse(self.tree, [Bad(error.name, error.kind, error.reason) for error in refused])
        good = [decoded for decoded in some if decoded.pixels is not None]
        chunk = Chunk(
            kept=[decoded.number for decoded in good],
            sizes=[decoded.size for decoded in good],
            bad=[(decoded.number, error.kind, error.reason) for decoded, error in wrong],
            files=some[-1].number + 1,
        )
        builder.add([decoded.pixels for decoded in good if decoded.pixels is not None], chunk)

    def decoded(self, number: int) -> _Decoded:
        """Read, decode and squeeze one file."""
        name = self.tree.files[number].path
        content = b""
        try:
            try:
                content = (self.tree.root / name).read_bytes()
            except OSError as error:
                raise BadImage(name, "unreadable", error.strerror or str(error)) from error
            if digest(content) != self.contents[number]:
                raise DataError(
                    f"Expected {shown(name)} as it was a moment ago; found it changed. "
                    "Start again when nothing writes to the folder."
                )
            return self.squeezed(number, decode(content, name), None)
        except BadImage as error:
            if self.on_bad_image == PAD and error.kind == "truncated":
                try:
                    return self.squeezed(number, decode(content, name, truncated="pad"), error)
                except BadImage:  # cut in its header: there is nothing to pad
                    pass
            return _Decoded(number, None, (0, 0), error)

    def squeezed(self, number: int, pixels: Pixels, error: BadImage | None) -> _Decoded:
        """The image at the stored size, channels first."""
        from PIL import Image

        size = pixels.shape[:2]
        if size != (self.height, self.width):
            image = Image.fromarray(pixels).resize((self.width, self.height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
        return _Decoded(number, np.ascontiguousarray(pixels.transpose(2, 0, 1)), (size[0], size[1]), error)


def _refuse(tree: Tree, bad: Sequence[Bad]) -> None:
    """Raise if there is anything to refuse."""
    if bad:
        named = "; ".join(f"{shown(path)} ({kind}: {shown(reason)})" for path, kind, reason in bad[:LISTED])
        more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        raise DataError(
            f"Expected an image in every file of {shown(str(tree.root))}; found {named}{more}. List all of them with "
            "`pogm data check`, or leave them out with --on-bad-image skip."
        )
