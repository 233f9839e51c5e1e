"""Decoding of DICOM files, with the optional package pydicom.

Stored values are converted to the unit of the modality (slope and intercept, or a lookup table; Hounsfield units for
CT), then to 8 bits by an `Intensity`, and inverted if the photometric interpretation is MONOCHROME1. With "auto", the
display window of the file is used if there is one. It is what radiologists saw, but may differ between files: then
give one window for all, in the unit of the modality, such as ``intensity=window:-1000:400``.
"""

import io
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pogm._system.errors import UsageError
from pogm.data.images.decode import MOST_PIXELS, BadImage, Header, Kind, first_line
from pogm.data.images.intensity import Intensity, Values

GREY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT", "YBR_PARTIAL_420", "YBR_PARTIAL_422")
LARGEST = 1e9  # values in the unit of any modality are smaller
DEFLATED = b"1.2.840.10008.1.2.1.99"  # a compressed data set, which could be a decompression bomb


class Window(NamedTuple):
    """Display window of a file: intensities that become 0 and 255, or the centre and width of a sigmoid."""

    low: float
    high: float
    is_sigmoid: bool = False

    def apply(self, values: Values) -> npt.NDArray[np.uint8]:
        """Return the intensities in 8 bits."""
        if not self.is_sigmoid:
            return Intensity("window", self.low, self.high).apply(values)
        centre, width = (self.low + self.high) / 2, self.high - self.low
        return np.asarray(np.rint(255 / (1 + np.exp(-4 * (values - centre) / width))), dtype=np.uint8)


class DicomImage(NamedTuple):
    """Grey values of a file in the unit of its modality, or 8-bit colour."""

    values: Values  # [H, W], or uint8 [H, W, 3]
    window: Window | None
    stored: tuple[float, float]  # smallest and largest value that the file can store, in the unit of the modality
    is_inverted: bool  # True if the smallest value is white

    def to_pixels(self, intensity: Intensity) -> npt.NDArray[np.uint8]:
        """Return the pixels [H, W, 3]."""
        if self.values.ndim == 3:
            return np.ascontiguousarray(self.values)
        if self.window is not None and intensity.kind in ("none", "auto"):
            grey = self.window.apply(self.values)
        elif intensity.kind == "none":  # all stored values
            grey = Intensity("window", *self.stored).apply(self.values)
        else:
            grey = intensity.apply(self.values)
        return np.repeat((255 - grey if self.is_inverted else grey)[:, :, None], 3, axis=2)


def read_dicom_header(content: bytes, name: str) -> Header:
    """Return the size and the bit depth of a DICOM file. Grey images count as wide if they need any scaling."""
    data = _read(content, name, stop_before_pixels=True)
    is_grey = data.PhotometricInterpretation in GREY
    is_plain = data.BitsStored <= 8 and _find_window(data) is None and _rescale(data, 0, 1) == (0.0, 1.0)
    return Header(int(data.Rows), int(data.Columns), is_grey and not is_plain)


def read_dicom(content: bytes, name: str) -> DicomImage:
    """Decode the image of a DICOM file.

    Raises:
        BadImage: If the file is damaged, has several frames or no image, or has a format that cannot be decoded.
        UsageError: If pydicom is not installed.
    """
    data = _read(content, name)
    from pydicom.pixels import apply_modality_lut, pixel_array

    try:
        stored = pixel_array(data)
        values = np.asarray(apply_modality_lut(stored, data)) if data.SamplesPerPixel == 1 else stored
        if not (np.abs(values) < LARGEST).all():
            raise BadImage(name, "corrupt", f"values that are not finite or not below {LARGEST:g}")
        return DicomImage(values, _find_window(data), _stored_range(data), data.PhotometricInterpretation == GREY[0])
    except BadImage:
        raise
    except Exception as error:  # decoders raise any exception on damaged input
        reason = first_line(error)
        kind: Kind = "truncated" if "less than" in reason or "truncated" in reason.lower() else "format"
        raise BadImage(name, kind, reason) from error


def _read(content: bytes, name: str, stop_before_pixels: bool = False) -> Any:
    """Read the tags of a file and check that it has one image of a supported kind."""
    try:
        import pydicom
    except ImportError as error:
        raise UsageError(
            f"Expected the package pydicom, to read DICOM files such as {name}; found none. "
            'Install it: pip install "pogm[dicom]"'
        ) from error
    if DEFLATED in content[:4096]:
        raise BadImage(name, "format", "a deflated DICOM file; convert it to another transfer syntax")
    try:
        data = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=stop_before_pixels)
        height, width = int(data.Rows), int(data.Columns)
        kind, bits, samples = str(data.PhotometricInterpretation), int(data.BitsStored), int(data.SamplesPerPixel)
        frames = int(data.get("NumberOfFrames") or 1)
    except Exception as error:
        raise BadImage(name, "corrupt", f"DICOM without an image that can be read: {first_line(error)}") from error
    if frames > 1:
        raise BadImage(name, "format", f"a DICOM file of {frames} frames; write each frame to a file of its own")
    if height * width > MOST_PIXELS:
        raise BadImage(name, "too large", f"a header of {width} × {height}, more than {MOST_PIXELS} pixels")
    is_grey, is_colour = kind in GREY and samples == 1, kind in COLOUR and samples == 3 and bits == 8
    if not (is_grey or is_colour):
        raise BadImage(name, "format", f"a DICOM image of kind {kind} with {bits} bits, which is not supported")
    return data


def _find_window(data: Any) -> Window | None:
    """Return the first display window of a file (DICOM PS3.3 C.11.2.1.2); None if there is none."""
    centre, width = (_first(data.get(tag)) for tag in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or width <= 0:
        return None
    function = str(data.get("VOILUTFunction") or "LINEAR")
    if function == "LINEAR":
        half = max(width - 1, 1e-6) / 2
        return Window(centre - 0.5 - half, centre - 0.5 + half)
    return Window(centre - width / 2, centre + width / 2, function == "SIGMOID")


def _stored_range(data: Any) -> tuple[float, float]:
    bits, is_signed = int(data.BitsStored), bool(data.get("PixelRepresentation"))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    ends = sorted(_rescale(data, low, high))
    return ends[0], max(ends[1], ends[0] + 1)


def _rescale(data: Any, low: float, high: float) -> tuple[float, float]:
    slope, intercept = _first(data.get("RescaleSlope")), _first(data.get("RescaleIntercept"))
    slope, intercept = 1.0 if slope is None else slope, intercept or 0.0
    return low * slope + intercept, high * slope + intercept


def _first(value: Any) -> float | None:
    """Return the first of several numbers; None if there is none."""
    if value is None or value == "":
        return None
    values = value if isinstance(value, list | tuple) or hasattr(value, "insert") else [value]
    try:
        number = float(values[0])
    except (IndexError, TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
