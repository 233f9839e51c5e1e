"""Decoding of image files to 8-bit RGB pixels, with a reason for every file that cannot be decoded.

Only the formats below are parsed, whatever the name of a file is. The size in the header is checked before any pixel is
decoded. Images that are not 8-bit RGB are converted:

- greyscale and palettes: to RGB. Transparency (alpha) is dropped and the colour under it is kept, as in DomainBed and
  torchvision.
- CMYK: Pillow's conversion without a colour profile.
- 16 bits per channel, of colour and of grey: scaled by an `Intensity`, by default the upper 8 bits (Pillow's conversion
  clips grey to white and drops the lower 8 bits of colour). Images with more bits are refused, because their range is
  not defined.
- EXIF orientation: applied. DomainBed ignores it; its datasets hardly use it.
- animations: the first frame.
- DICOM: see `pogm.data.images.dicom`.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.data.images.intensity import NONE, Intensity, Levels, Values, measure_levels
from pogm.data.images.wide_colour import find_wide_colour, load_lower_bytes, load_pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Pixels = npt.NDArray[np.uint8]
Kind = Literal["empty", "not an image", "corrupt", "truncated", "too large", "format", "unreadable"]
Truncated = Literal["refuse", "pad"]

MOST_PIXELS = 2**26  # 8192 × 8192: more than cameras give, and 256 MiB in Pillow for each thread
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".dcm")
JPEG, PNG, WEBP = b"\xff\xd8\xff", b"\x89PNG", b"RIFF"
SIGNATURES = (JPEG, PNG, WEBP, b"BM", b"GIF8", b"II*\0", b"MM\0*", b"P4", b"P5", b"P6")  # first bytes of FORMATS
OTHER_SIGNATURES = {
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


class BadImage(DataError):  # noqa: N818 - also used as a value that describes the file
    """A file that cannot be decoded: its name, the kind of damage and the reason."""

    def __init__(self, name: str, kind: Kind, reason: str):
        super().__init__(name, kind, reason)
        self.name, self.kind, self.reason = name, kind, reason

    @property
    def lines(self) -> tuple[object, ...]:
        """The message."""
        return (
            f"Expected an image in {printable(self.name)}; found {self.kind}: {self.reason}. "
            "Replace or remove it; `pogm data check` finds all such files.",
        )


class Header(NamedTuple):
    """Facts about an image that its header tells."""

    height: int  # after the EXIF orientation is applied
    width: int
    is_wide: bool  # True if it has more than 8 bits per channel


def decode(content: bytes, name: str, *, truncated: Truncated = "refuse", intensity: Intensity = NONE) -> Pixels:
    """Decode the content of a file to pixels [H, W, 3].

    Args:
        content: The bytes of the file.
        name: Name of the file, for messages.
        truncated: ``"pad"`` accepts a truncated file. The missing part is grey in a JPEG and black in other formats.
            The result is that of Pillow's LOAD_TRUNCATED_IMAGES, but that flag is global and would affect other
            threads. A truncated WebP cannot be decoded at all.
        intensity: Scaling of images with more than 8 bits per channel.

    Raises:
        BadImage: If the file cannot be decoded.
    """
    with ignore_warnings():
        if is_dicom(content):
            from pogm.data.images.dicom import read_dicom

            return read_dicom(content, name).to_pixels(intensity)
        image = _open(content, name)
        try:
            lower = None if intensity == NONE else load_lower_bytes(image, lambda: _open(content, name))
            image.load()
            return _to_pixels(image, name, intensity, lower)
        except BadImage:
            raise
        except Exception as error:  # decoders raise any exception on damaged input
            bad = BadImage(name, _classify(error, content), first_line(error))
            if truncated == "pad" and bad.kind == "truncated":
                return _pad(content, bad, intensity)
            raise bad from error


def read_header(content: bytes, name: str) -> Header:
    """Return the size and the bit depth of the image that `decode` would return, from the header alone."""
    with ignore_warnings():
        if is_dicom(content):
            from pogm.data.images.dicom import read_dicom_header

            return read_dicom_header(content, name)
        image = _open(content, name)
        width, height = image.size
        is_wide = image.mode.startswith("I") or find_wide_colour(image) is not None
        return Header(width, height, is_wide) if _read_orientation(image) > 4 else Header(height, width, is_wide)


def read_values(content: bytes, name: str) -> Values:
    """Return the intensities of an image with more than 8 bits per channel: [H, W], or [H, W, 3] for colour.

    Those of a DICOM file are in the unit of its modality.

    Raises:
        BadImage: If the file cannot be decoded.
    """
    with ignore_warnings():
        if is_dicom(content):
            from pogm.data.images.dicom import read_dicom

            return read_dicom(content, name).values
        image = _open(content, name)
        try:
            lower = load_lower_bytes(image, lambda: _open(content, name))
            image.load()
            return _to_values(image, name, lower)
        except BadImage:
            raise
        except Exception as error:
            raise BadImage(name, _classify(error, content), first_line(error)) from error


def is_dicom(content: bytes) -> bool:
    """Return True if the content is that of a DICOM file."""
    return content[128:132] == b"DICM"


def read_levels(content: bytes, name: str) -> Levels | None:
    """Return the range of intensities of an image with more than 8 bits per channel; None if it cannot be decoded."""
    with suppress(BadImage):
        return measure_levels(read_values(content, name))
    return None


def _open(content: bytes, name: str) -> "ImageFile":
    """Open an image and check its header."""
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise BadImage(name, "empty", "no bytes")
    start = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    for signature, other in OTHER_SIGNATURES.items():
        if start.startswith(signature) or (other == "SVG" and start.startswith(b"<?xml") and signature in start):
            raise BadImage(name, "format", f"{other}, which is not among {', '.join(FORMATS)}")
    if content[4:8] == b"ftyp":
        raise BadImage(name, "format", f"HEIF, AVIF or a film, which is not among {', '.join(FORMATS)}")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise BadImage(name, "too large", f"a header that asks for more than {MOST_PIXELS} pixels") from error
    except UnidentifiedImageError as error:
        if not content.startswith(SIGNATURES):
            raise BadImage(name, "not an image", f"bytes that begin with {content[:8]!r}") from error
        raise BadImage(name, _classify(error, content), "a header that cannot be read") from error
    except Exception as error:
        raise BadImage(name, _classify(error, content), first_line(error)) from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise BadImage(name, "too large", f"a header of {width} × {height}, more than {MOST_PIXELS} pixels")
    return image


def _pad(content: bytes, bad: BadImage, intensity: Intensity) -> Pixels:
    """Decode what there is of a truncated file; raise the original error if nothing can be decoded."""
    whole = content + END_OF_JPEG if content.startswith(JPEG) else content
    try:
        image = _open(whole, bad.name)
        lower = None if intensity == NONE else load_lower_bytes(image, lambda: _open(whole, bad.name), padded=True)
        load_pixels(image, padded=True)
        return _to_pixels(image, bad.name, intensity, lower)
    except Exception as error:
        raise bad from error


def convert_image(image: "Image", intensity: Intensity = NONE) -> Pixels:
    """Convert an image that Pillow has opened to pixels [H, W, 3], as `decode` does.

    Pillow drops the lower 8 bits of 16-bit colour when it loads an image. Use `decode` for such files.
    """
    return _to_pixels(image, "the image", intensity)


def _to_pixels(image: "Image", name: str, intensity: Intensity, lower: Values | None = None) -> Pixels:
    if lower is None and not image.mode.startswith("I"):
        return _rotate_upright(_to_rgb(image, name), _read_orientation(image))
    values = _to_values(image, name, lower)
    if intensity == NONE and values.min() < 0:
        raise BadImage(name, "format", "negative intensities; give their range, such as intensity=window:-1000:1000")
    scaled = intensity.apply(values)
    pixels = np.repeat(scaled[:, :, None], 3, axis=2) if scaled.ndim == 2 else scaled
    return _rotate_upright(pixels, _read_orientation(image))


def _to_values(image: "Image", name: str, lower: Values | None) -> Values:
    """Return the intensities of a loaded image with 16 bits per channel, for some of which Pillow uses 32."""
    if lower is None:
        values = np.asarray(image)
        if values.min() < -(2**15) or values.max() >= 2**16:
            raise BadImage(name, "format", "32 bits per pixel, whose range is not known")
        return values
    if lower.ndim == 2:  # grey with alpha: all bits are in `lower`
        return lower
    return np.asarray(image)[:, :, :3].astype(np.uint16) << 8 | lower


def _to_rgb(image: "Image", name: str) -> Pixels:
    if image.mode in ("F", "LAB"):
        raise BadImage(name, "format", f"pixels of kind {image.mode}, whose colours are not known")
    if image.mode in ("RGBa", "La"):  # colours multiplied by alpha
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    return np.asarray(image.convert("RGB"))


def _read_orientation(image: "Image") -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is missing or invalid."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1  # Pillow rotates a TIFF itself, and would decode a whole PNG to search for a tag at its end
    try:
        number = image.getexif().get(0x0112, 1)
    except Exception:  # damaged tags; the pixels may be intact
        return 1
    return number if number in range(1, 9) else 1


def _rotate_upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _classify(error: Exception, content: bytes) -> Kind:
    """Return "truncated" or "corrupt" for a file that cannot be decoded."""
    cut = {
        JPEG: END_OF_JPEG not in content[-64:],
        PNG: b"IEND" not in content[-64:],
        WEBP: int.from_bytes(content[4:8], "little") + 8 > len(content),
    }
    reported = "truncated" in str(error).lower()
    return "truncated" if reported or any(cut[start] for start in cut if content.startswith(start)) else "corrupt"


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_lock = threading.Lock()
_active = 0  # threads inside `ignore_warnings`
_saved = warnings.catch_warnings()


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore warnings while the block runs, also if several threads run such a block at once.

    Decoders warn about unusual tags, which does not matter here. ``warnings.catch_warnings`` alone is not thread-safe:
    two threads may restore each other's filters. Here the first thread changes the filters and the last one restores
    them.
    """
    global _active, _saved
    with _lock:
        if _active == 0:
            _saved = warnings.catch_warnings()
            _saved.__enter__()
            warnings.simplefilter("ignore")
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                _saved.__exit__(None, None, None)
