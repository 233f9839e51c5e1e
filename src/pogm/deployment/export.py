"""Export of a trained model to ONNX, torch.export or safetensors, compared with the original before it is written.

The exported network takes what ``model.transform`` returns (resized and normalised images) and returns logits. A JSON
file beside it describes classes, inputs and preprocessing. The exported file contains the same JSON.
"""

import copy
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from pogm import __version__
from pogm._system.errors import PogmError, UsageError
from pogm._system.files import digest, readable_json, write_atomic
from pogm.data.images.intensity import LOWER, UPPER, Intensity
from pogm.data.transforms.base import Pixels
from pogm.data.transforms.photographs import DEVIATION, MEAN, Photographs
from pogm.deployment.export_comparison import Comparison, compare
from pogm.deployment.export_formats import EXPORTERS, INPUT, ONNX_PACKAGES, OUTPUT, Format
from pogm.deployment.model import TrainedModel, image_transform

SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
SCHEMA = 1  # version of the JSON file
TOLERANCE = 1e-4  # largest difference of logits, relative to the largest logit or to 1


class ExportError(PogmError):
    """Exported model that gives other predictions than the original."""

    exit_code = 6


@dataclass(frozen=True)
class Exported:
    """Result of an export."""

    path: Path
    description: Path  # JSON file
    comparison: Comparison
    bytes: int


def export(model: TrainedModel, to: Format, path: Path, *, tolerance: float = TOLERANCE) -> Exported:
    """Export a model, compare it with the original, and write it together with its description.

    Both files are complete or do not exist: they are written at the end, atomically, and the model is the last. An
    older file stays unchanged if the export fails.

    Args:
        model: The model.
        to: ``"onnx"`` (needs ``pogm[onnx]``), ``"torch-export"`` (for ``torch.export.load``) or ``"safetensors"`` (the
            weights only, with the names of torchvision or timm if the network is one of theirs).
        path: File to write. The description is ``<path>.json``.
        tolerance: Largest accepted difference of the logits, relative to the largest logit or to 1.

    Raises:
        UsageError: The model adapts to its batch, torch cannot export the network, or a package is missing.
        ExportError: The difference is larger than the tolerance. Nothing is written.
    """
    if model.adapts:
        raise UsageError(
            "Expected a model that predicts each image on its own; found "
            f"{model.description['algorithm']}, which adapts to the other images of its batch by code that is not part "
            "of the network. Use it with pogm predict or pogm.load."
        )
    if not tolerance >= 0:
        raise UsageError(f"Expected a tolerance of at least 0; found {tolerance}. Leave it out.")
    if path.is_dir() or not path.parent.is_dir():
        what = f"the folder {path}" if path.is_dir() else f"no folder {path.parent}"
        name = path / f"model{SUFFIXES[to]}" if path.is_dir() else path.name
        raise UsageError(
            f"Expected a file to write in an existing folder; found {what}. Write, for example: --out {name}"
        )
    model = copy.deepcopy(model).cpu()
    description = describe_export(model, to)
    content, predict, more = EXPORTERS[to](model, description)
    comparison = compare(model, predict)
    if not comparison.difference <= tolerance:
        raise ExportError(
            f"Expected logits that differ from those of the original by at most {tolerance:g}; found a difference of "
            f"{comparison.difference:.3g} for {comparison.inputs}. Nothing was written. Choose another format, or "
            "accept the difference with a larger tolerance."
        )
    description |= more
    description["file"] = {"name": path.name, "sha256": digest(content), "bytes": len(content)}
    description["comparison"] = comparison._asdict() | {"tolerance": tolerance}
    beside = path.with_name(path.name + ".json")
    _write_both(beside, readable_json(description), path, content)
    return Exported(path, beside, comparison, len(content))


def _write_both(first: Path, text: bytes, second: Path, content: bytes) -> None:
    """Write two files. If the second one cannot be written, restore or remove the first one."""
    before = first.read_bytes() if first.exists() else None
    write_atomic(first, text)
    try:
        write_atomic(second, content)
    except BaseException:
        if before is None:
            first.unlink(missing_ok=True)
        else:
            write_atomic(first, before)
        raise


def describe_export(model: TrainedModel, to: Format) -> dict[str, Any]:
    """Return the description of an exported model: classes, inputs, outputs, preprocessing, provenance."""
    names = ("algorithm", "network", "dataset", "domains", "held_out", "selection", "trial_id")
    versions = {"pogm": __version__, "torch": torch.__version__}
    if to == "onnx":
        versions |= {name: version(name) for name in ONNX_PACKAGES if find_spec(name)}
    return {
        "schema": SCHEMA,
        "format": to,
        "classes": list(model.classes),
        "input": {"name": INPUT, "shape": ["batch", *model.transform.transform.shape], "dtype": "float32"},
        "output": {"name": OUTPUT, "shape": ["batch", len(model.classes)], "dtype": "float32"},
        "temperature": model.temperature,
        "probabilities": "softmax(logits / temperature)",
        "preprocessing": describe_preprocessing(model),
        "model": {name: model.description[name] for name in names if name in model.description},
        "versions": versions,
    }


def describe_preprocessing(model: TrainedModel) -> dict[str, Any]:
    """Return the preprocessing of ``model.transform`` in words and numbers."""
    transform, (height, width) = model.transform.transform, image_transform(model).stored_size
    channels, rows, columns = transform.shape
    colour = {1: "8-bit greyscale", 3: "8-bit RGB"}.get(channels, f"8-bit images with {channels} channels")
    intensity = image_transform(model).intensity
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
