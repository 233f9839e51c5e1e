"""Export of a trained model to ONNX, torch.export or safetensors, compared with the original before it is written.

A model of images takes what ``model.transform`` returns (resized and normalised images). One of other data contains
its preprocessing. Both return logits, or the numbers of a regression. A JSON file beside it describes classes, inputs
and preprocessing. The exported file contains the same JSON.
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
from pogm.deployment.export_comparison import Comparison, compare
from pogm.deployment.export_formats import EXPORTERS, INPUT, ONNX_PACKAGES, Format, name_output
from pogm.deployment.export_inputs import describe_input, describe_preprocessing
from pogm.deployment.model import TrainedModel
from pogm.deployment.preprocessing import ArrayTransform

SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
SCHEMA = 1  # version of the JSON file
TOLERANCE = 1e-4  # largest difference of outputs, relative to the largest output or to 1


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
            weights only, with the names of torchvision or timm if the network is one of theirs; for images only).
        path: File to write. The description is ``<path>.json``.
        tolerance: Largest accepted difference of the outputs, relative to the largest output or to 1.

    Raises:
        UsageError: The model adapts to its batch, the format does not support it, or a package is missing.
        ExportError: The difference is larger than the tolerance. Nothing is written.
    """
    if model.adapts:
        raise UsageError(
            "Expected a model that predicts each sample on its own; found "
            f"{model.description['algorithm']}, which adapts to the other samples of its batch by code that is not "
            "part of the network. Use it with pogm predict or pogm.load."
        )
    if to == "safetensors" and isinstance(model.transform, ArrayTransform):
        raise UsageError(
            f"Expected onnx or torch-export for a model of {model.dataset.title}, because these formats contain its "
            "preprocessing; found safetensors. Choose one of them."
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
            f"Expected outputs that differ from those of the original by at most {tolerance:g}; found a difference of "
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
    probabilities = {"temperature": model.temperature, "probabilities": "softmax(logits / temperature)"}
    if to == "onnx":
        versions |= {name: version(name) for name in ONNX_PACKAGES if find_spec(name)}
    return {
        "schema": SCHEMA,
        "format": to,
        "classes": list(model.classes),
        "input": {"name": INPUT, **describe_input(model)},
        "output": {"name": name_output(model), "shape": ["batch", len(model.classes) or 1], "dtype": "float32"},
        **(probabilities if model.classes else {}),
        "preprocessing": describe_preprocessing(model),
        "model": {name: model.description[name] for name in names if name in model.description},
        "versions": versions,
    }
