"""Inputs of exported models: what a file takes, how to make it, and inputs to compare it with the original.

A model of images is exported without its preprocessing, which needs an image decoder: it takes what ``model.transform``
returns. A model of other data is exported with its preprocessing: it takes samples in their stored form, for example a
row of a table with NaN for missing values.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pogm.data.images.intensity import LOWER, UPPER, Intensity
from pogm.data.transforms.arrays import Columns, Counts, LogMel, Series, TokenCounts
from pogm.data.transforms.base import Pixels
from pogm.data.transforms.photographs import DEVIATION, MEAN, Photographs
from pogm.deployment.model import TrainedModel
from pogm.deployment.preprocessing import ArrayTransform, ImageTransform

BATCH_SIZES = (1, 2, 5)  # an exported program is traced with another one
EXTREME = 100.0  # factor of the random inputs that are far outside of the usual range
MISSING = 0.3  # share of missing values in a table


class WithPreprocessing(nn.Module):
    """Model of a table, series, audio or text with its preprocessing: stored samples in, logits or numbers out."""

    def __init__(self, model: TrainedModel):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, classes], or the predicted numbers [N, 1], of stored samples [N, ...]."""
        result: Tensor = self.model(self.model.transform.transform.prepare(x, self.model.statistics))
        return result


def module_to_export(model: TrainedModel) -> nn.Module:
    """Return the module whose outputs an exported file computes."""
    return model if isinstance(model.transform, ImageTransform) else WithPreprocessing(model)


def make_zeros(model: TrainedModel, count: int) -> Tensor:
    """Return inputs of an exported file that are all 0."""
    if isinstance(model.transform, ImageTransform):
        return torch.zeros(count, *model.transform.transform.shape)
    dtype = torch.int64 if isinstance(model.transform.transform, TokenCounts) else torch.float32
    return torch.zeros((count, *model.transform.dataset.input_shape), dtype=dtype)


def describe_input(model: TrainedModel) -> dict[str, Any]:
    """Return the shape and the type of the input of an exported file."""
    example = make_zeros(model, 1)
    return {"shape": ["batch", *example.shape[1:]], "dtype": str(example.dtype).removeprefix("torch.")}


def describe_preprocessing(model: TrainedModel) -> dict[str, Any]:
    """Return in words and numbers how to make an input of an exported file."""
    if isinstance(model.transform, ImageTransform):
        return _describe_images(model.transform)
    return _describe_arrays(model.transform)


def probe_inputs(model: TrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs of a comparison, with names. They are always the same."""
    generator = torch.Generator().manual_seed(0)
    for size in BATCH_SIZES:
        if isinstance(model.transform, ImageTransform):
            yield from _probe_images(model.transform, size, generator)
        else:
            yield from _probe_arrays(model.transform, make_zeros(model, size), generator)
        yield "zeros", make_zeros(model, size)


def _probe_images(image: ImageTransform, size: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield random numbers in the range of images and far outside, and black, white and patterned images."""
    transform, (height, width) = image.transform, image.stored_size
    noise = torch.randn(size, *transform.shape, generator=generator)
    yield "random inputs", noise
    yield f"random inputs times {EXTREME:g}", noise * EXTREME
    pixels = torch.randint(256, (size, transform.shape[0], height, width), generator=generator, dtype=torch.uint8)
    board = (torch.arange(height)[:, None] + torch.arange(width)) % 2 * 255
    images = {
        "random pixels": pixels,
        "black images": torch.zeros_like(pixels),
        "white images": torch.full_like(pixels, 255),
        "checkerboards": board.to(torch.uint8).expand_as(pixels).contiguous(),
    }
    yield from ((name, transform.to_inputs(stored, torch.float32)) for name, stored in images.items())


def _probe_arrays(array: ArrayTransform, zeros: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield stored samples: like those of the training, far outside, and missing values in tables."""
    transform, statistics = array.transform, array.statistics
    if isinstance(transform, TokenCounts):
        yield "random tokens", torch.randint(transform.shape[0] + 1, zeros.shape, generator=generator)
        return
    if isinstance(transform, Counts):
        counts = torch.poisson(torch.ones_like(zeros), generator=generator)
        yield "random counts", counts
        yield f"random counts times {EXTREME:g}", counts * EXTREME
        return
    noise = torch.randn(zeros.shape, generator=generator)
    if isinstance(transform, LogMel):
        yield "noise", noise.clamp(-3, 3) / 3
        yield f"noise divided by {EXTREME:g}", noise.clamp(-3, 3) / 3 / EXTREME
        return
    values = noise
    if isinstance(transform, Columns | Series):  # a transform of a plug-in has other statistics, or none
        scale = statistics["scale"].cpu()
        values = statistics["mean"].cpu() + noise * torch.where(scale > 0, 1 / scale, 0)
    yield "random samples", values
    yield f"random samples times {EXTREME:g}", values * EXTREME
    if isinstance(transform, Columns):
        is_missing = torch.rand(zeros.shape, generator=generator) < MISSING
        yield "random samples with missing values", torch.where(is_missing, torch.nan, values)
        yield "missing values only", torch.full_like(values, torch.nan)


def _describe_arrays(array: ArrayTransform) -> dict[str, Any]:
    transform, encoding = array.transform, getattr(array.dataset, "encoding", None)
    if isinstance(transform, Columns) and encoding is not None and encoding.names:
        numbers: list[dict[str, str]] = [{"kind": "number", "name": name} for name in encoding.numbers]
        one_hot = [{"kind": "category", "name": name, "value": value} for name, value in encoding.pairs]
        steps = [
            "Make one row of numbers for each sample, in the order of `columns`.",
            "A column of the kind number has the number, or NaN for a missing value.",
            "A column of the kind category has 1 if the text of the column `name` is `value`, else 0. A missing or "
            "unknown text has 0 in all its columns.",
        ]
        return {"steps": [*steps, INSIDE], "columns": numbers + one_hot}
    if isinstance(transform, LogMel):
        audio = f"Give mono audio with {transform.rate} samples per second, as numbers from -1 to 1."
        return {"steps": [audio, INSIDE], "rate": transform.rate}
    words = {
        Columns: "Give the numbers of each sample in the order of the training data; NaN is a missing value.",
        TokenCounts: f"Give token ids from 1 to {transform.shape[0]}; 0 is padding.",
        Counts: "Give the number of occurrences of each word, in the order of the training data.",
    }
    step = next((text for kind, text in words.items() if isinstance(transform, kind)), None)
    return {"steps": [step or "Give the samples in the form of the training data.", INSIDE]}


INSIDE = "All other preprocessing, such as standardisation, is part of the model."


def _describe_images(image: ImageTransform) -> dict[str, Any]:
    transform, (height, width) = image.transform, image.stored_size
    channels, rows, columns = transform.shape
    colour = {1: "8-bit greyscale", 3: "8-bit RGB"}.get(channels, f"8-bit images with {channels} channels")
    intensity = image.intensity
    steps = [
        f"Decode the image, apply its EXIF orientation, drop transparency, and convert it to {colour}."
        + ("" if intensity is None else f" {_describe_intensity(intensity)}"),
        f"Resize it to {height} × {width} (height × width) with Pillow's bilinear filter, if it has another size. The "
        "aspect ratio is not kept. Round to 8 bits.",
    ]
    numbers: dict[str, Any] = {"channels": channels, "stored_size": [height, width], "input_size": [rows, columns]}
    if intensity is not None:
        numbers["intensity"] = str(intensity)
    if isinstance(transform, Photographs):
        if (height, width) != (rows, columns):
            steps.append(f"Resize to {rows} × {columns} with an antialiased bilinear filter, in floating point.")
        mean, deviation = ", ".join(map(str, MEAN)), ", ".join(map(str, DEVIATION))
        steps += [
            "Divide by 255.",
            f"Subtract the mean ({mean}) and divide by the standard deviation ({deviation}) of each channel.",
        ]
        numbers |= {"scale": 1 / 255, "mean": list(MEAN), "std": list(DEVIATION)}
    elif isinstance(transform, Pixels):
        steps.append("Divide by 255.")
        numbers |= {"scale": 1 / 255, "mean": [0.0] * channels, "std": [1.0] * channels}
    else:
        steps.append(f"Apply {transform!r}.")
    steps.append("Order the axes as [batch, channels, height, width].")
    return {"steps": steps, **numbers}


def _describe_intensity(intensity: Intensity) -> str:
    """Return the scaling of images with more than 8 bits per channel in words."""
    if intensity.kind == "none":
        return "Of 16 bits per channel, keep the upper 8."
    window = " A DICOM file with a display window is scaled by that window instead." if intensity.kind == "auto" else ""
    low, high = f"{intensity.low:g}", f"{intensity.high:g}"
    if intensity.kind == "image":
        low, high = (f"the quantile {quantile:g} of the image" for quantile in (LOWER, UPPER))
    return (
        f"With more than 8 bits per channel, scale linearly so that {low} becomes 0 and {high} becomes 255, limit to "
        f"0 ... 255, and round.{window}"
    )
