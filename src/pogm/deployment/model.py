"""A trained model: load it from the folder of a run or of a model, and apply it to images."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from pogm.data.datasets.base import DomainDataset
from pogm.data.images.intensity import Intensity
from pogm.data.transforms.base import Statistics
from pogm.deployment.ensemble import Ensemble
from pogm.deployment.preprocessing import ArrayTransform, ImageTransform
from pogm.engine.sampling import denormalise_outputs
from pogm.engine.session import split_statistics
from pogm.modifiers.base import Modifier, Predictor


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
    try:
        trial = Trial.from_json(description["trial"])
        training = replace(trial.training, weights="random")  # the weights of the model replace the initial ones
        trial = replace(trial, training=training)
        is_classifier = trial.dataset.task == "classification"
        if is_classifier and len(description["classes"]) != trial.dataset.num_classes:
            raise ValueError(f"{trial.dataset.num_classes} classes, and {len(description['classes'])} names of them.")
        network = trial.task(None).build_network()
        networks = [network, *(copy.deepcopy(network) for _ in members[1:])]
        for each, leaves in zip(networks, members, strict=True):
            set_tensors(each, split_statistics(leaves)[0])
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
    return TrainedModel(combined, trial, description, split_statistics(members[0])[1])


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
