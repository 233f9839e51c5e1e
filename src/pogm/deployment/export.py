"""Export of a trained model to ONNX, torch.export or safetensors, compared with the original before it is written.

The exported network takes what ``model.transform`` returns (resized and normalised images) and returns logits. A JSON
file beside it describes classes, inputs and preprocessing. The same JSON is inside of the exported file.
"""

import copy
import io
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from pogm import __version__
from pogm._system.errors import PogmError, UsageError
from pogm._system.files import digest, readable_json, write_atomic
from pogm.data.images.intensity import LOWER, UPPER, Intensity
from pogm.data.transforms.base import Pixels
from pogm.data.transforms.photographs import DEVIATION, MEAN, Photographs
from pogm.deployment.model import ImageTransform, TrainedModel
from pogm.deployment.predict import read_temperature
from pogm.models.timm_models import PREFIX

Format = Literal["onnx", "torch-export", "safetensors"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
SCHEMA = 1  # version of the JSON file
INPUT, OUTPUT = "input", "logits"
METADATA = "pogm.json"  # name of the description inside of an exported file
TOLERANCE = 1e-4  # largest difference of logits, relative to the largest logit or to 1
BATCH_SIZES = (1, 2, 5)  # that are compared; the program is traced with another one
TRACED_BATCH = 3
EXTREME = 100.0  # factor of the random inputs that are far outside of the range of images

Predict = Callable[[Tensor], Tensor]


class ExportError(PogmError):
    """Exported model that gives other predictions than the original."""

    exit_code = 6


class Comparison(NamedTuple):
    """Largest difference between the logits of the exported model and of the original."""

    difference: float  # relative to the largest logit of a batch, or to 1 if that is smaller
    inputs: str  # inputs with this difference
    batches: int  # number of batches that were compared


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
        what = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UsageError(f"Expected a path for the exported file; found {what}. Name a file in an existing folder.")
    model = copy.deepcopy(model).cpu()
    description = describe_export(model, to)
    content, predict, more = _EXPORTERS[to](model, description)
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
        "temperature": read_temperature(model),
        "probabilities": "softmax(logits / temperature)",
        "preprocessing": describe_preprocessing(model),
        "model": {name: model.description[name] for name in names if name in model.description},
        "versions": versions,
    }


def image_transform(model: TrainedModel) -> ImageTransform:
    """Return the preprocessing of a model of images; raise a `UsageError` for a model of other data."""
    if not isinstance(model.transform, ImageTransform):
        raise UsageError(
            f"Expected a model of images to export; found one of {model.dataset.title}, whose preprocessing no other "
            "program has. Use it in Python: pogm.load(FOLDER)."
        )
    return model.transform


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


# Comparison.


def compare(model: TrainedModel, predict: Predict) -> Comparison:
    """Return the largest difference between the logits of a model and of another function.

    The inputs are random numbers in the range of images and far outside, and black, white and patterned images, in
    several batch sizes. Logits that are not finite must be so in both.
    """
    worst, batches = Comparison(-1.0, "", 0), 0
    for name, inputs in probe_inputs(model):
        with torch.no_grad():
            expected, found = model(inputs).double(), predict(inputs).double()
        batches += 1
        difference = _relative_difference(expected, found)
        if difference > worst.difference:
            worst = Comparison(difference, f"{name}, batch size {len(inputs)}", 0)
    return worst._replace(batches=batches)


def _relative_difference(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return math.inf
    is_finite = expected.isfinite()
    if not torch.equal(is_finite, found.isfinite()):
        return math.inf
    gaps = torch.where(is_finite, expected - found, 0.0).abs()
    size = torch.where(is_finite, expected, 0.0).abs().max().clamp(min=1)
    return float(gaps.max() / size)


def probe_inputs(model: TrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs of a comparison, with names. They are always the same."""
    generator = torch.Generator().manual_seed(0)
    transform, (height, width) = model.transform.transform, image_transform(model).stored_size
    for size in BATCH_SIZES:
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
        yield from ((name, transform.to_inputs(image, torch.float32)) for name, image in images.items())
        yield "zeros", torch.zeros_like(noise)


# Formats.

Made = tuple[bytes, Predict, dict[str, Any]]  # the file, its predictions, and further entries of the description


def _export_program(model: TrainedModel) -> torch.export.ExportedProgram:
    """Return the traced program, with any batch size and without the paths of source files."""
    inputs = torch.zeros(TRACED_BATCH, *model.transform.transform.shape)
    try:
        program = torch.export.export(model, (inputs,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    except Exception as error:  # torch raises many kinds of errors here
        raise _unsupported("torch.export", model, error) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _make_torch_export(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    file = io.BytesIO()
    torch.export.save(_export_program(model), file, extra_files={METADATA: json.dumps(description)})
    content = file.getvalue()
    module: Any = torch.export.load(io.BytesIO(content)).module()
    return content, module, {"load": f"torch.export.load(FILE).module(), with torch {torch.__version__} or later"}


def _make_onnx(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UsageError(
            f"Expected the packages {', '.join(ONNX_PACKAGES)} for ONNX; found no {', '.join(missing)}. "
            "Install them: pip install 'pogm[onnx]'"
        )
    import onnxruntime

    program = _export_program(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about its own code
            made = torch.onnx.export(
                program, (), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
            )
        assert made is not None
        proto = made.model_proto
        for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
            del node.metadata_props[:]  # names of Python classes and source files
        entry = proto.metadata_props.add()
        entry.key, entry.value = METADATA, json.dumps(description)
        content: bytes = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exporter and the runtime raise many kinds of errors
        raise _unsupported("ONNX", model, error) from error

    def predict(x: Tensor) -> Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: x.numpy()})
        return torch.from_numpy(logits)

    operators = {str(item.domain or "ai.onnx"): int(item.version) for item in proto.opset_import}
    return content, predict, {"load": "onnxruntime.InferenceSession(FILE)", "operator_sets": operators}


def _make_safetensors(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    unique = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}  # shared weights once
    saved = model.network.state_dict()  # without the buffers that only training needs
    tensors = {name: leaf.contiguous() for name, leaf in saved.items() if name in unique}
    for rebuild in (_rebuild_published, _rebuild_own):
        if (rebuilt := rebuild(model, tensors)) is not None:
            break
    assert rebuilt is not None
    names, module, load = rebuilt
    content = save_tensors({names[name]: leaf for name, leaf in tensors.items()}, {METADATA: json.dumps(description)})
    with torch.no_grad():
        for leaf in module.state_dict().values():
            leaf.zero_()  # what follows must come from the file
    module.load_state_dict(load_tensors(content), strict=False)
    return content, module.eval(), {"load": load}


Rebuilt = tuple[dict[str, str], nn.Module, str]  # new names of the weights, module for them, how to make the module


def _rebuild_published(model: TrainedModel, tensors: Mapping[str, Tensor]) -> Rebuilt | None:
    """Return the module of torchvision or timm for the weights; None if the network is not exactly one of theirs."""
    found = _published_module(str(model.description["network"]), model)
    if found is None or not isinstance(model.network.head, nn.Linear):
        return None
    module, inside, classifier, load = found
    prefix = f"features.{inside}."
    names = {
        name: f"{classifier}.{name.removeprefix('head.')}"
        if name.startswith("head.")
        else name.removeprefix(prefix if inside else "features.")
        for name in tensors
    }
    expected = {name: leaf.shape for name, leaf in module.state_dict().items()}
    if expected != {names[name]: leaf.shape for name, leaf in tensors.items()}:
        return None  # other channels, or a modifier has changed the network
    return names, module, load


def _published_module(network: str, model: TrainedModel) -> tuple[nn.Module, str, str, str] | None:
    """Return the module, the name of its copy in the featurizer, the name of its classifier, and the code for it."""
    count = len(model.classes)
    if network in ("resnet18", "resnet50", "mobilenet_v2"):
        from torchvision import models

        module: nn.Module = getattr(models, network)(num_classes=count)
        classifier = "classifier.1" if network == "mobilenet_v2" else "fc"
        return module, "", classifier, f"torchvision.models.{network}(num_classes={count})"
    if network.startswith(PREFIX):
        import timm

        name, shape = network.removeprefix(PREFIX), model.transform.transform.shape
        config = timm.get_pretrained_cfg(name)
        if config is None or not isinstance(config.classifier, str):
            return None
        size: dict[str, Any] = {"img_size": shape[1:]} if config.fixed_input_size else {}
        module = timm.create_model(name, in_chans=shape[0], num_classes=count, **size)
        options = "".join(f", {key}={value}" for key, value in size.items())
        load = f"timm.create_model({name!r}, in_chans={shape[0]}, num_classes={count}{options})"
        return module, "model", config.classifier, load
    return None


def _rebuild_own(model: TrainedModel, tensors: Mapping[str, Tensor]) -> Rebuilt:
    """Return a copy of the network, whose weights keep their names."""
    load = "the module features, then the module head, of pogm.load(MODEL).network"
    return {name: name for name in tensors}, copy.deepcopy(model.network), load


def _unsupported(what: str, model: TrainedModel, error: Exception) -> UsageError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UsageError(
        f"Expected a network that {what} supports; found that {model.description.get('network')} gives: {reason} "
        "Choose another format, such as safetensors."
    )


_EXPORTERS: dict[Format, Callable[[TrainedModel, Mapping[str, Any]], Made]] = {
    "onnx": _make_onnx,
    "torch-export": _make_torch_export,
    "safetensors": _make_safetensors,
}
