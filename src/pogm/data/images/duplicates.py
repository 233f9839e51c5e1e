"""Near-duplicates: images that look the same but differ in size, compression or brightness.

Every image has a hash of 64 bits, the difference hash: the image is reduced to 9 × 8 grey values, and each bit says
whether a value is larger than its left neighbour. Two images are near-duplicates if their hashes differ in few bits and
their reduced images agree; the second condition sorts out drawings and flat images, of which many have similar hashes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pogm.data.images.decode import Pixels

MOST_BITS = 4  # of 64 bits that may differ
LEAST_CORRELATION = 0.995  # of the reduced images; on PACS, 97 % of recompressed or resized copies have more
LEAST_CONTRAST = 4.0  # standard deviation of the grey values; flatter images are not compared
BLOCK = 2048  # rows of a bucket that are compared at once
SIDE = (8, 9)  # height and width of a reduced image


class Thumbnail(NamedTuple):
    """Reduced image: its difference hash, and its 72 grey values as bytes. The hash is None if the image is flat."""

    bits: int | None
    grey: bytes


def reduce_image(pixels: Pixels) -> Thumbnail:
    """Return the reduced image of pixels [H, W, 3]."""
    from PIL import Image

    image = Image.fromarray(pixels).convert("L").resize(SIDE[::-1], Image.Resampling.BOX)
    grey = np.asarray(image)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    hashed = int.from_bytes(bits.tobytes(), "big") if grey.std() >= LEAST_CONTRAST else None
    return Thumbnail(hashed, grey.tobytes())


def find_near_duplicates(thumbnails: Sequence[Thumbnail]) -> list[list[int]]:
    """Return groups of near-duplicates as sorted indices. A group is connected by pairs; its ends may differ more.

    The 64 bits are divided into five blocks. If at most four bits differ, at least one block is equal. So only hashes
    with an equal block are compared, and the time does not grow with the square of the number of images.
    """
    known = [number for number, thumbnail in enumerate(thumbnails) if thumbnail.bits is not None]
    if len(known) < 2:
        return []
    bits = np.array([thumbnails[number].bits for number in known], dtype=np.uint64)
    grey = np.frombuffer(b"".join(thumbnails[number].grey for number in known), np.uint8).reshape(len(known), -1)
    parents = np.arange(len(known))

    def find(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = int(parents[number])
        return number

    for first, second in _find_similar_hashes(bits):
        agree = _correlations(grey, first, second) >= LEAST_CORRELATION
        for one, other in zip(first[agree].tolist(), second[agree].tolist(), strict=True):
            low, high = sorted((find(one), find(other)))
            parents[high] = low
    groups = defaultdict(list)
    for position, number in enumerate(known):
        groups[find(position)].append(number)
    return [group for group in groups.values() if len(group) > 1]


def _find_similar_hashes(bits: npt.NDArray[np.uint64]) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Yield arrays of pairs whose hashes differ in at most `MOST_BITS` bits; a pair may come several times."""
    edges = np.linspace(0, 64, MOST_BITS + 2).astype(int)
    for start, stop in pairwise(edges):
        block = (bits >> np.uint64(start)) & np.uint64((1 << int(stop - start)) - 1)
        order = np.argsort(block, kind="stable")
        ends = np.flatnonzero(np.diff(block[order])) + 1
        for bucket in np.split(order, ends):
            for begin in range(0, len(bucket) - 1, BLOCK):
                rows, columns = bucket[begin : begin + BLOCK], bucket[begin:]
                distances = _count_bits(bits[rows, None] ^ bits[None, columns])
                first, second = np.nonzero(distances <= MOST_BITS)
                after = second > first  # each pair once
                if after.any():
                    yield rows[first[after]], columns[second[after]]


def _correlations(
    grey: npt.NDArray[np.uint8], first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    found = []
    for begin in range(0, len(first), 1 << 16):  # in parts, to bound the memory
        one, other = (grey[pairs[begin : begin + (1 << 16)]].astype(np.float64) for pairs in (first, second))
        one -= one.mean(1, keepdims=True)
        other -= other.mean(1, keepdims=True)
        found.append((one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1)))
    return np.concatenate(found) if found else np.zeros(0)


def _count_bits(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):  # numpy 2
        counts: npt.NDArray[np.uint8] = np.bitwise_count(numbers)
        return counts
    single = np.unpackbits(numbers.view(np.uint8).reshape(*numbers.shape, 8), axis=-1)
    return np.asarray(single.sum(-1), dtype=np.uint8)
