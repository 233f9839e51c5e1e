"""A trained model: load it from the folder of a run or of a model, and apply it to images."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pogm._system.errors import IntegrityError, PogmError, UsageError
from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.selected_model import (
    DESCRIPTION,
    ENSEMBLE_FORMAT,
    MODEL,
    read_description,
    read_members,
    version_of,
)
from pogm.core.model import Model, Network
from pogm.data.datasets.array_dataset import warn_of_unknown_categories
from pogm.data.datasets.base import DomainDataset
from pogm.data.images.decode import BadImage, convert_image, decode, read_header
from pogm.data.images.intensity import NONE, Intensity
from pogm.data.transforms.base import Statistics, Transform
from pogm.deployment.ensemble import Ensemble
from pogm.engine.sampling import denormalise_outputs
from pogm.engine.session import STATISTICS
from pogm.modifiers.base import Modifier, Predictor

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageTransform:
    """Preprocessing of a trained model: the same as in the evaluations of its training.

    Args:
        transform: Transform from stored images to inputs of the network.
        stored_size: Height and width to which an image is resized first.
        intensity: Scaling of images with more than 8 bits per channel; None if the model has seen none.
    """

    def __init__(self, transform: Transform, stored_size: tuple[int, int], intensity: Intensity | None = None):
        self.transform, self.stored_size, self.intensity = transform, stored_size, intensity

    def __call__(self, image: "Image | Path | str") -> Tensor:
        """Return the input of the network, [C, H, W], for an image or for the path of one."""
        return self.transform.to_inputs(self.to_stored(image), torch.float32)

    def to_stored(self, image: "Image | Path | str") -> Tensor:
        """Return the image in its stored form: uint8 [C, height, width].

        Raises:
            BadImage: The file is not an image that can be decoded.
            UsageError: The model was trained on images that are not greyscale or RGB.
        """
        from PIL import Image

        channels = self.transform.shape[0]
        if channels not in (1, 3):
            raise UsageError(
                f"Expected a model of greyscale or RGB images; found one of images with {channels} channels. "
                "Make the input tensor yourself and call the model with it."
            )
        if isinstance(image, str | Path):
            content, name = Path(image).read_bytes(), str(image)
            self._check_depth(read_header(content, name).is_wide, name)
            pixels = decode(content, name, intensity=self.intensity or NONE)
        elif isinstance(image, Image.Image):
            self._check_depth(image.mode.startswith("I"), "the image")
            pixels = convert_image(image, intensity=self.intensity or NONE)
        else:
            raise UsageError(f"Expected a PIL image or a path; found {type(image).__name__}. Open it with PIL first.")
        height, width = self.stored_size
        found = Image.fromarray(pixels)
        if channels == 1:
            found = found.convert("L")
        if found.size != (width, height):
            found = found.resize((width, height), Image.Resampling.BILINEAR)
        array = np.array(found).reshape(height, width, channels)
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))

    def _check_depth(self, is_wide: bool, name: str) -> None:
        """Raise a `BadImage` for more than 8 bits per channel, if the training data do not say how to scale them."""
        if is_wide and self.intensity is None:
            raise BadImage(name, "format", "more than 8 bits per channel, and the model was trained on 8-bit images")

    def __repr__(self) -> str:
        scaling = f", intensity={self.intensity}" if self.intensity else ""
        return f"ImageTransform({self.transform}, stored_size={self.stored_size}{scaling})"


class ArrayTransform:
    """Preprocessing of a model of tables, time series, audio or text: the same as in its training.

    Args:
        transform: Transform from stored inputs to inputs of the network.
        dataset: Dataset of the training, with the names and the encoding of the columns.
        statistics: Statistics of the training data.
    """

    def __init__(self, transform: Transform, dataset: DomainDataset, statistics: Statistics):
        self.transform, self.dataset, self.statistics = transform, dataset, statistics

    def __call__(self, samples: "Mapping[str, Any] | npt.ArrayLike | Tensor") -> Tensor:
        """Return the inputs of the network, [N, ...].

        Args:
            samples: Columns of a table by name, also as a data frame; or samples [N, ...] in the form of the training
                data.
        """
        return self.transform.prepare(self.to_stored(samples), self.statistics)

    def to_stored(self, samples: Any) -> Tensor:
        """Return samples, as `__call__` takes them, in their stored form.

        Raises:
            DataError: A column is missing, or a value is not a number.
            UsageError: The samples have another shape than those of the training, or columns have different lengths.
        """
        encoding = getattr(self.dataset, "encoding", None)
        has_names = encoding is not None and bool(encoding.names)
        if has_names and hasattr(samples, "columns"):  # a data frame, whose columns may have any order
            samples = {str(name): samples[name] for name in samples.columns}
        if isinstance(samples, Mapping):
            if encoding is None or not has_names:
                raise UsageError(
                    f"Expected samples as an array, for a model of {self.dataset.title}; found columns. Stack them."
                )
            columns = {name: np.asarray(samples[name]) for name in encoding.names if name in samples}
            shapes = {name: column.shape for name, column in columns.items()}
            if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
                found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                raise UsageError(f"Expected columns of one length [N]; found {found}. Give a list for each column.")
            stored = torch.from_numpy(encoding.encode(columns, "the table"))
            warn_of_unknown_categories(encoding, columns, "the table")
            return stored
        try:
            stored = samples if isinstance(samples, Tensor) else torch.tensor(np.asarray(samples))
        except (TypeError, ValueError) as error:
            raise UsageError(f"Expected samples of numbers; found: {error} Convert them to float32.") from error
        shape = self.dataset.input_shape
        if stored.shape[1:] != shape:
            raise UsageError(
                f"Expected samples of shape [N, {', '.join(map(str, shape))}]; found {list(stored.shape)}. Give them "
                "in the form of the training data."
            )
        return stored


class TrainedModel(nn.Module):
    """A trained model in evaluation mode. `pogm.load` returns it.

    Attributes:
        classes: Names of the classes, in the order of the logits; empty for a regression.
        transform: Preprocessing: PIL image or path in, tensor [C, H, W] out; for other data, `ArrayTransform`.
        description: Contents of ``model.json``: network, algorithm, selection, temperature, provenance.
        adapts: True if a prediction depends on the other images of its batch (ARM, MTL, ITTA, T3A, TENT). Such a batch
            must come from one domain.
    """

    transform: ImageTransform | ArrayTransform

    def __init__(
        self,
        network: Network | Ensemble,
        trial: Trial,
        description: dict[str, Any],
        statistics: Statistics | None = None,
    ):
        super().__init__()
        self.adapts = trial.adapts
        # Other parts, such as discriminators, are needed in training only.
        self.network: Network | Ensemble = network
        if isinstance(network, Network) and not self.adapts:
            self.network = Network(network.features, network.head)
        self.classes: tuple[str, ...] = tuple(description["classes"])
        transform = trial.dataset.transform(trial.training)
        self._statistics = tuple(statistics or ())
        for name, value in (statistics or {}).items():
            self.register_buffer(f"statistic_{name}", value)
        if description["stored_size"]:
            height, width = description["stored_size"]
            scaling = description.get("provenance", {}).get("intensity")
            self.transform = ImageTransform(transform, (height, width), Intensity.parse(scaling) if scaling else None)
        else:
            self.transform = ArrayTransform(transform, trial.dataset, self.statistics)
        self.description = description
        self._trial = trial
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, classes], or the predicted numbers [N, 1], of inputs [N, ...]."""
        shape = self.transform.transform.shape
        if not torch.compiler.is_exporting() and tuple(x.shape[1:]) != shape:
            raise UsageError(
                f"Expected inputs of shape [N, {', '.join(map(str, shape))}]; found {list(x.shape)}. "
                "Use model.transform on images, and stack the results."
            )
        return self.predictor()(x)

    def predictor(self) -> Predictor:
        """Return a function from inputs to logits for the batches of one domain.

        A model that adapts at test time (ITTA, T3A, TENT) keeps what it learns from one batch to the next, as in
        evaluations.
        """
        if self.task == "regression":
            return lambda x: denormalise_outputs(self._logits()(x), self.statistics)
        return self._logits()

    def _logits(self) -> Predictor:
        if not self.adapts:
            return self.network
        model = Model(self.network, dict(self.network.named_parameters()), dict(self.network.named_buffers()))

        def predict(x: Tensor) -> Tensor:
            return self._trial.algorithm.predict(model, x)

        predictor: Predictor = predict
        for modifier in self._trial.modifiers:
            predictor = modifier.predictor(predictor, model)
        return predictor

    @property
    def statistics(self) -> dict[str, Tensor]:
        """Statistics of the training data that the transform uses, on the device of the model."""
        return {name: self.get_buffer(f"statistic_{name}") for name in self._statistics}

    @property
    def task(self) -> str:
        """Task of the model: classification or regression."""
        return self._trial.dataset.task

    @property
    def dataset(self) -> DomainDataset:
        """Dataset of the training, without its data."""
        return self._trial.dataset

    @property
    def batch_size(self) -> int | None:
        """Number of images to predict together if the model adapts to its batch, else None."""
        parts: list[Algorithm | Modifier] = [self._trial.algorithm, *self._trial.modifiers]
        sizes = [part.prediction_batch_size for part in parts]
        return min(filter(None, sizes), default=None)

    @property
    def temperature(self) -> float:
        """Number by which logits are divided before the softmax, to calibrate probabilities; 1 if none was fitted."""
        temperature = self.description.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
            raise UsageError(
                f"Expected a temperature above 0 in model.json; found {temperature!r}. Restore the file from a copy."
            )
        return float(temperature)

    def probabilities(self, images: Any) -> Tensor:
        """Return the class probabilities [N, classes], predicted as one batch: the softmax of logits / temperature.

        They are the probabilities that ``pogm predict`` writes.

        Args:
            images: Images or their paths; for a model of other data, what `ArrayTransform` takes.

        Raises:
            UsageError: The model is one of a regression.
        """
        if self.task == "regression":
            raise UsageError(
                "Expected a model of classes; found a regression, which has no probabilities. Call the model: "
                "model(model.transform(samples))."
            )
        device = next(self.parameters()).device
        if isinstance(self.transform, ArrayTransform):
            inputs = self.transform(images).to(device)
        else:
            inputs = torch.stack([self.transform(image) for image in images]).to(device)
        with torch.no_grad():
            return (self.forward(inputs) / self.temperature).softmax(-1)


def load(folder: Path | str) -> TrainedModel:
    """Load the model that a run has selected, or that ``pogm train``, ``soup`` or ``ensemble`` has written.

    Args:
        folder: Folder of a run, of a combination of runs, or of a model.

    Returns:
        A module in evaluation mode, on the CPU. ``model.classes`` has the names of the classes, ``model.transform``
        makes an input from an image.

    Raises:
        UsageError: There is no model in the folder, or a later version of the package wrote it.
        IntegrityError: The files of the model are damaged.

    Example:
        >>> model = pogm.load("runs/first")  # doctest: +SKIP
        >>> model.probabilities(["image.png"])  # [1, classes]; doctest: +SKIP
        >>> model(model.transform("image.png")[None])  # logits [1, classes]; doctest: +SKIP
    """
    folder = find_model(Path(folder))
    description = read_description(folder)
    members = list(read_members(folder, description))
    tensors = members[0]
    try:
        trial = Trial.from_json(description["trial"])
        training = replace(trial.training, weights="random")  # the weights of the model replace the initial ones
        trial = replace(trial, training=training)
        is_classifier = trial.dataset.task == "classification"
        if is_classifier and len(description["classes"]) != trial.dataset.num_classes:
            raise ValueError(f"{trial.dataset.num_classes} classes, and {len(description['classes'])} names of them.")
        network = trial.task(None).build_network()
        networks = [network, *(copy.deepcopy(network) for _ in members[1:])]
        statistics = {n.removeprefix(STATISTICS): leaf for n, leaf in tensors.items() if n.startswith(STATISTICS)}
        for each, leaves in zip(networks, members, strict=True):
            set_tensors(each, {name: leaf for name, leaf in leaves.items() if not name.startswith(STATISTICS)})
        combined: Network | Ensemble = network.float()
        if description["format"] == ENSEMBLE_FORMAT:
            parts = [Network(each.features, each.head).float() for each in networks]
            combined = Ensemble(parts, description["combination"]["mean"])
    except (PogmError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise IntegrityError(
            f"Expected weights of the network {description.get('network')} in {folder}; found others: {reason} "
            f"Install pogm {version_of(description)}, which wrote the model, or train it again."
        ) from error
    return TrainedModel(combined, trial, description, statistics)


def set_tensors(network: Network, tensors: dict[str, Tensor]) -> None:
    """Copy weights and buffers into a network. Unlike ``load_state_dict``, shared weights have one name."""
    targets = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    if different := sorted(targets.keys() ^ tensors.keys()):
        raise ValueError(f"{len(different)} names differ, such as {different[0]}.")
    with torch.no_grad():
        for name, target in targets.items():
            if target.shape != tensors[name].shape:
                raise ValueError(f"{name} has the shape {list(tensors[name].shape)} and not {list(target.shape)}.")
            if target.is_floating_point() != tensors[name].is_floating_point():
                raise ValueError(f"{name} has the dtype {tensors[name].dtype} and not {target.dtype}.")
            target.copy_(tensors[name])


def find_model(folder: Path) -> Path:
    """Return the folder that contains ``model.json``: this one, or ``model`` in the folder of a run."""
    for found in (folder, folder / MODEL):
        if (found / DESCRIPTION).is_file():
            return found
    if not folder.exists():
        raise UsageError(f"Expected the folder of a run or of a model; found nothing at {folder}. Check the path.")
    is_run = (folder / "trial.json").exists()
    why = "a run without a selected model" if is_run else "none"
    then = (
        "A run has one after its first checkpoint; runs of pogm 0.1.0 and before, and of a sweep with "
        "--skip-model-save, have none. Continue it (pogm resume), or start it again."
        if is_run
        else "Name the folder of a run, or what pogm train wrote."
    )
    raise UsageError(f"Expected {DESCRIPTION} in {folder}; found {why}. {then}")
