"""Images with 16-bit colour, of which Pillow decodes only the upper 8 bits: find them, and decode the lower 8 bits."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from pogm.data.images.intensity import Values

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

WIDE_COLOUR = re.compile(
    r"(LA|RGB|RGBA|RGBX);16([LBN])"
)  # Pillow's names of 16-bit colour, with the order of the bytes


def find_wide_colour(image: "Image") -> tuple[str, str] | None:
    """Return Pillow's mode and byte order of an opened image with 16-bit colour; None for other images."""
    tile = getattr(image, "tile", None)
    arguments = tile[0][3] if tile else ""
    found = WIDE_COLOUR.fullmatch(str(arguments if isinstance(arguments, str) else (arguments or ("",))[0]))
    return (found[1], found[2]) if found else None


def load_lower_bytes(image: "ImageFile", reopen: Callable[[], "ImageFile"], padded: bool = False) -> Values | None:
    """Decode the lower 8 bits of 16-bit colour [H, W, 3], or all bits of grey with alpha [H, W]; else return None.

    Pillow keeps only the upper byte of each channel. Decoding as if the bytes had the other order keeps the lower one.

    Args:
        image: An opened image, whose pixels are not decoded yet.
        reopen: Opens it a second time.
        padded: As in `load_pixels`.
    """
    found = find_wide_colour(image)
    if found is None:
        return None
    mode, order = found
    again = reopen()
    if mode == "LA":
        again._mode, other = "RGBA", "RGBA"
    else:
        big = order == "B" or (order == "N" and sys.byteorder == "big")
        other = f"{mode};16{'L' if big else 'B'}"
    again.tile = [
        tile._replace(args=other if isinstance(tile.args, str) else (other, *(tile.args or ())[1:]))
        for tile in again.tile
    ]
    load_pixels(again, padded)
    pixels = np.asarray(again)
    if mode == "LA":
        return np.asarray(pixels[:, :, 0].astype(np.uint16) << 8 | pixels[:, :, 1])
    return pixels[:, :, :3]


def load_pixels(image: "ImageFile", padded: bool) -> None:
    """Decode the pixels of an opened image; if padded, accept that the file ends before the last pixel."""
    if not padded:
        image.load()
        return
    with suppress(OSError):
        image.load()
    image.tile = []  # no tiles left: Pillow takes the pixels decoded so far as the image
