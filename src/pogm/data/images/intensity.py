"""Scaling of intensities with more than 8 bits per channel to the 8 bits that are stored.

Why one mapping for all images of a dataset is the default: in medical images the intensity has a meaning, such as the
attenuation of a tissue. A window that is fitted to each image would give the same tissue another grey level in every
image, and hide differences between sites that the model will meet. Why the bit depth and not the percentiles
themselves: a detector of 12 bits has the values 0 to 4095 at every site. Zero stays black, nothing is clipped, and an
image of a new site is scaled as the images of the training sites were. Percentiles are used only to find the bit depth,
because a few hot pixels or a burnt-in label may have the largest value of the file format.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from pogm._system.errors import UsageError

Kind = Literal["none", "auto", "window", "image"]
Values = npt.NDArray[Any]  # intensities of an image, integers or floats
LOWER, UPPER = 0.001, 0.999  # quantiles of the pixels of one image
FORM = "auto, window:LOW:HIGH, image or none"


class Levels(NamedTuple):
    """Range of the intensities of one image: its quantiles 0.001 and 0.999."""

    low: int
    high: int


@dataclass(frozen=True)
class Intensity:
    """Mapping of the intensities of an image to 0 ... 255. Images of 8 bits per channel are not changed.

    As a text, which is also its form in JSON: ``none``, ``image``, ``window:0:4095`` or ``auto:0:4095``.

    Attributes:
        kind: "window": LOW becomes 0 and HIGH becomes 255; values outside are clipped. "auto": the same, but a DICOM
            file that has a display window is mapped by that window. Without LOW and HIGH the range is not measured yet;
            see `resolve`. "image": the quantiles 0.001 and 0.999 of each image. "none": the upper 8 of 16 bits.
        low: Intensity that becomes 0.
        high: Intensity that becomes 255.
    """

    kind: Kind = "none"
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mapping that a text describes.

        Raises:
            UsageError: The text has another form, or LOW is not below HIGH.
        """
        kind, *numbers = text.split(":")
        limits = [_number(number) for number in numbers]
        has_limits = len(limits) == 2 and None not in limits
        if kind in ("none", "image", "auto") and not limits:
            return cls(kind)  # type: ignore[arg-type]
        if kind in ("window", "auto") and has_limits and limits[0] < limits[1]:  # type: ignore[operator]
            return cls(kind, *limits)  # type: ignore[arg-type]
        raise UsageError(
            f"Expected intensity to be {FORM}, with LOW < HIGH; found {text!r}. For example: --set "
            "intensity=window:0:4095"
        )

    def __str__(self) -> str:
        if not self.has_range:
            return self.kind
        low, high = (str(int(limit) if limit == int(limit) else float(limit)) for limit in (self.low, self.high))
        return f"{self.kind}:{low}:{high}"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"Expected the kind of an intensity to be {FORM}; found {self.kind!r}. Choose one.")

    @property
    def has_range(self) -> bool:
        """True if LOW and HIGH are known."""
        return self.low < self.high

    @property
    def is_resolved(self) -> bool:
        """True if the mapping can be applied."""
        return self.kind in ("none", "image") or self.has_range

    def apply(self, values: Values) -> npt.NDArray[np.uint8]:
        """Return the intensities in 8 bits, rounded to the nearest integer; the upper 8 bits for "none"."""
        if self.kind == "none":
            return np.asarray(values >> 8, dtype=np.uint8)
        if not self.is_resolved:
            raise UsageError(
                "Expected an intensity with a known range; found auto. Resolve it with the index of the dataset, or "
                "pass auto:LOW:HIGH."
            )
        low, high = measure_levels(values) if self.kind == "image" else (self.low, self.high)
        if values.dtype == np.uint16 and values.size > 2**16:  # a table is faster
            return np.asarray(_scale(np.arange(2**16), low, high)[values])
        return _scale(values, low, high)


def _scale(values: Values, low: float, high: float) -> npt.NDArray[np.uint8]:
    scaled = (values.astype(np.float64) - low) * 255 / max(high - low, 1e-9)
    return np.asarray(np.rint(scaled.clip(0, 255)), dtype=np.uint8)


NONE = Intensity()


def measure_levels(values: Values) -> Levels:
    """Return the quantiles 0.001 and 0.999 of the intensities, each of which is the intensity of some pixel."""
    low, high = np.quantile(values, (LOWER, UPPER), method="inverted_cdf")
    return Levels(math.floor(low), math.ceil(high))


def resolve(intensity: Intensity, levels: Iterable[Levels]) -> Intensity:
    """Return the mapping with the range of a dataset, if it is "auto" and has none.

    The range is 0 ... 2^b - 1, where b is the smallest bit depth that contains the levels of all images. If the levels
    span less than half of that range, for example because they have an offset, the range is that of the levels.

    Args:
        intensity: The mapping.
        levels: Levels of every image with more than 8 bits. If there are none, the result is "none".
    """
    if intensity.is_resolved:
        return intensity
    found = list(levels)
    if not found:
        return NONE
    low, high = min(level.low for level in found), max(level.high for level in found)
    largest = 2 ** max(high.bit_length(), 8) - 1
    if low >= 0 and high - low >= largest // 2:
        return Intensity("auto", 0, largest)
    return Intensity("auto", low, max(high, low + 255))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
