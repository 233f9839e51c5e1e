"""An image file as RGB pixels, or why it is not one.

Only the formats below are ever parsed, whatever a file is called, and no pixel is decoded before the size in its header
was found acceptable. What becomes of what is not 8-bit RGB:

- greyscale and palettes: their colours; a transparency (alpha) is dropped and the colour beneath it stays, as in
  DomainBed and torchvision;
- CMYK: Pillow's conversion without a colour profile;
- 16 bits per channel: the upper 8, of colour and grey alike (Pillow's own conversion clips grey to white); more bits
  have no agreed range, and are refused;
- EXIF orientation: applied, so that people stand upright. DomainBed ignores it; its datasets hardly use it;
- an animation: its first frame.
"""

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError
from pogm.data.images.names import shown
from pogm.data.images.warning_filter import quiet

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Pixels = npt.NDArray[np.uint8]
Kind = Literal["empty", "not an image", "corrupt", "truncated", "too large", "format", "unreadable"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Truncated = Literal["refuse", "pad"]

MOST_PIXELS = 2**26  # 8192 × 8192: beyond cameras that fill datasets, and 256 MiB in Pillow for each thread
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
JPEG, PNG, WEBP = b"\xff\xd8\xff", b"\x89PNG", b"RIFF"
OURS = (JPEG, PNG, WEBP, b"BM", b"GIF8", b"II*\0", b"MM\0*", b"P4", b"P5", b"P6")  # so begin those
OTHERS = {
    b"SIMPLE  =": "FITS",
    b"%!PS": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"%PDF": "PDF",
    b"8BPS": "Photoshop",
    b"<svg": "SVG",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\0\0\1\0": "icon",
    b"\xd7\xcd\xc6\x9a": "Windows metafile",
}
END_OF_JPEG = b"\xff\xd9"


class BadImage(DataError):  # noqa: N818 - an image that is bad, before it is an error
    """A file that does not give an image: which, of what kind, for what reason."""

    def __init__(self, name: str, kind: Kind, reason: str):
        super().__init__(name, kind, reason)
        self.name, self.kind, self.reason = name, kind, reason

    def __str__(self) -> str:
        return (
            f"Expected an image in {shown(self.name)}; found {self.kind}: {self.reason}. "
            "Replace or remove it; `pogm data check` finds all like it."
        )


def decode(content: bytes, name: str, *, truncated: Truncated = "refuse") -> Pixels:
    """The pixels [H, W, 3] of a file with that content; the name is for messages.

    ``truncated="pad"`` accepts a file that was cut: what is missing is grey in a JPEG and black elsewhere, as with
    Pillow's LOAD_TRUNCATED_IMAGES, but without that flag, which would be set for every thread. Of a WebP that was cut,
    nothing can be decoded.
    """
    with quiet():
        image = _open(content, name)
        try:
            image.load()
            return _pixels(image, name)
        except BadImage:
            raise
        except Exception as error:  # decoders of hostile bytes fail in any way they like
            bad = BadImage(name, _kind(error, content), _reason(error))
            if truncated == "pad" and bad.kind == "truncated":
                return _padded(content, bad)
            raise bad from error


def size_of(content: bytes, name: str) -> tuple[int, int]:
    """The height and width that ``decode`` would give, from the header alone."""
    with quiet():
        image = _open(content, name)
        width, height = image.size
        return (width, height) if _orientation(image) > 4 else (height, width)


def _open(content: bytes, name: str) -> "ImageFile":
    """The image with its header read and found acceptable."""
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise BadImage(name, "empty", "no bytes")
    start = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    for signature, other in OTHERS.items():
        if start.startswith(signature) or (other == "SVG" and start.startswith(b"<?xml") and signature in start):
            raise BadImage(name, "format", f"{other}, which is not among {', '.join(FORMATS)}")
    if content[4:8] == b"ftyp":
        raise BadImage(name, "format", f"HEIF, AVIF or a film, which is not among {', '.join(FORMATS)}")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise BadImage(name, "too large", f"a header that asks for more than {MOST_PIXELS} pixels") from error
    except UnidentifiedImageError as error:
        if not content.startswith(OURS):
            raise BadImage(name, "not an image", f"bytes that begin with {content[:8]!r}") from error
        raise BadImage(name, _kind(error, content), "a header that cannot be read") from error
    except Exception as error:
        raise BadImage(name, _kind(error, content), _reason(error)) from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise BadImage(name, "too large", f"a header of {width} × {height}, more than {MOST_PIXELS} pixels")
    return image


def _padded(content: bytes, bad: BadImage) -> Pixels:
    """What can be decoded of a file that was cut; the error, if that is nothing."""
    try:
        image = _open(content + END_OF_JPEG if content.startswith(JPEG) else content, bad.name)
        with suppress(OSError):
            image.load()
        image.tile = []  # nothing left to do: what was decoded is the image
        return _pixels(image, bad.name)
    except Exception as error:
        raise bad from error


def _pixels(image: "Image", name: str) -> Pixels:
    return _upright(_rgb(image, name), _orientation(image))


def _rgb(image: "Image", name: str) -> Pixels:
    if image.mode.startswith("I"):  # 16 bits: Pillow keeps some of them in 32
        numbers = np.asarray(image)
        if numbers.min() < 0 or numbers.max() >= 2**16:
            raise BadImage(name, "format", "32 bits per pixel, whose range is not known")
        grey = (numbers >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("F", "LAB"):
        raise BadImage(name, "format", f"pixels of kind {image.mode}, whose colours are not known")
    if image.mode in ("RGBa", "La"):  # colours that were multiplied by their alpha
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    return np.asarray(image.convert("RGB"))


def _orientation(image: "Image") -> int:
    """EXIF's number for how the camera was held, 1 to 8; 1 where it says nothing or nonsense."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1  # Pillow turns a TIFF by itself, and would decode a whole PNG to look for a tag behind it
    try:
        number = image.getexif().get(0x0112, 1)
    except Exception:  # the tags are damaged; the pixels need not be
        return 1
    return number if number in range(1, 9) else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _kind(error: Exception, content: bytes) -> Kind:
    """Whether a file that cannot be decoded was cut, or else is damaged."""
    cut = {
        JPEG: END_OF_JPEG not in content[-64:],
        PNG: b"IEND" not in content[-64:],
        WEBP: int.from_bytes(content[4:8], "little") + 8 > len(content),
    }
    said = "truncated" in str(error).lower()
    return "truncated" if said or any(cut[start] for start in cut if content.startswith(start)) else "corrupt"


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
