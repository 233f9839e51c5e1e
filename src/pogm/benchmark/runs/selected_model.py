"""The selected model of a run: the weights of its best step, and a description.

The folder ``model`` in a run directory contains ``weights-STEP.safetensors`` and ``model.json``, which is written last
and names the weights file with its checksum. `pogm.load` reads it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import digest, read_json, readable_json, remove_temporary, write_atomic
from pogm._system.saved import read_regular
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_file import Record, mean_score
from pogm.data.datasets.base import Domain, split_domain
from pogm.engine.checkpoint import read_manifest

MODEL = "model"  # folder in the run directory
DESCRIPTION = "model.json"
FORMAT = 1  # version of the files; raise it when an older version of the package cannot read them
ENSEMBLE_FORMAT = 2  # of an ensemble, whose members have files of their own
RULE = "training-domain validation"
MOST_BYTES = 1 << 24  # of model.json: datasets may have many classes
WEIGHT_BYTES = 1 << 40  # of the weights


class SelectedModel:
    """The best step of one run so far, by the mean accuracy on the validation splits of the training domains.

    Weights stay on the host until the next checkpoint is written, because a resumed run starts from there.
    """

    def __init__(self, step: int = -1, validation: float = -math.inf):
        self.step, self.validation = step, validation
        self._tensors: dict[str, Tensor] | None = None  # None: written already, or not known
        self._sha256: str | None = None  # of the weights file, once it is written

    def consider(self, step: int, validation: float, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Select this step if it is better than all before; the first one of equals stays, as in model selection."""
        if validation > self.validation:
            self.step, self.validation = step, validation
            self._tensors = {name: leaf.detach().cpu().clone() for name, leaf in tensors().items()}

    def write(self, run: Path, description: Mapping[str, Any]) -> None:
        """Write the model into a run directory, unless it is there."""
        if self._tensors is None:
            return
        folder = run / MODEL
        folder.mkdir(exist_ok=True)
        content = save_tensors({name: leaf.contiguous() for name, leaf in self._tensors.items()})
        name = _file_name(self.step)
        write_atomic(folder / name, content)
        self._sha256 = digest(content)
        weights = {"file": name, "sha256": self._sha256, "bytes": len(content)}
        selected = {"rule": RULE, "step": self.step, "validation": self.validation}
        text = readable_json({"format": FORMAT, "weights": weights, "selection": selected, **description})
        write_atomic(folder / DESCRIPTION, text)
        self._tensors = None

    def to_json(self) -> dict[str, Any] | None:
        """Return step, validation accuracy and checksum for the manifest of a checkpoint; None without a step."""
        if self.step < 0:
            return None
        found: dict[str, Any] = {"step": self.step, "validation": self.validation}
        return found if self._sha256 is None else found | {"sha256": self._sha256}

    @classmethod
    def restore(cls, run: Path, manifest: Mapping[str, Any], records: list[Record], trial: Trial) -> "SelectedModel":
        """Return the selection at a checkpoint.

        Runs of earlier versions did not keep weights. For them the best step is that of the records, and there is a
        model only if a later step is better. Later versions kept weights, but no checksum of them.

        Raises:
            IntegrityError: The weights are missing, or differ from what was written.
        """
        if "selected" not in manifest:
            scores = [(validation_accuracy(record, trial), record["step"]) for record in records]
            known = [score for score in scores if not math.isnan(score[0])]
            validation, step = max(known, default=(-math.inf, -1), key=lambda score: score[0])
            return cls(step, validation)
        if manifest["selected"] is None:
            return cls()
        selected = manifest["selected"]
        found = cls(selected["step"], selected["validation"])
        found._sha256 = selected.get("sha256")
        path = run / MODEL / _file_name(found.step)  # not by model.json, which a later checkpoint may have replaced
        if found._sha256 is None:
            with suppress(OSError, UsageError, SafetensorError):
                found._tensors = load_tensors(read_regular(path, WEIGHT_BYTES))
            return found
        try:
            content = read_regular(path, WEIGHT_BYTES)
            reason = "" if digest(content) == found._sha256 else "other bytes"
        except OSError as error:
            reason = str(error.strerror)
        if reason:
            raise IntegrityError(
                f"Expected the weights of the selected step, with SHA-256 {found._sha256[:12]}…, in {path}; found: "
                f"{reason}. Restore the file from a copy, or delete {run} to start this run again."
            )
        found._tensors = load_tensors(content)
        return found


def remove_unused_weights(run: Path, checkpoints: Path) -> None:
    """Delete the weights of steps that neither a checkpoint of the run nor the description of its model refers to."""
    folder = run / MODEL
    if not folder.exists():
        return
    remove_temporary(folder)
    used = set()
    for path in checkpoints.glob("*.json"):
        with suppress(ValueError):  # a damaged checkpoint refers to nothing
            selection = read_manifest(path).get("selected")
            used.add(_file_name(selection["step"]) if selection else "")
    with suppress(OSError, ValueError, KeyError, TypeError, UsageError):  # no model yet, or a damaged one
        used.add(read_json(folder / DESCRIPTION, MOST_BYTES)["weights"]["file"])
    for path in folder.glob("weights-*.safetensors"):
        if path.name not in used:
            path.unlink(missing_ok=True)


def delete_model(run: Path) -> None:
    """Delete the selected model of a run, the description first: without it there is no model."""
    for path in (run / MODEL / DESCRIPTION, *(run / MODEL).glob("weights-*.safetensors")):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it contains other files, or there is none
        (run / MODEL).rmdir()


def validation_accuracy(record: Record, trial: Trial) -> float:
    """Return the mean accuracy, or R², on the validation splits of the training domains; NaN if it is not known."""
    return mean_score(record, "out", trial.train_domains)


def check_validation_targets(trial: Trial, domains: Sequence[Domain]) -> None:
    """Check that a regression has an R² on the validation samples of a training domain, because R² selects the step.

    Raises:
        DataError: If the validation samples of each training domain have equal targets.
    """
    found = []
    for number in trial.train_domains:
        name = trial.dataset.domains[number]
        _, outside = split_domain(domains[number], number, trial.trial_seed, name, samples=trial.samples)
        targets = domains[number].labels[outside]
        if bool((targets != targets[0]).any()):
            return
        found.append(f"{len(targets)} in {name}")
    raise DataError(
        "Expected two different targets in the validation part of a training domain, because R² selects the step of "
        f"the model; found equal targets only, in samples: {', '.join(found)}. Give the domains more samples, or merge "
        "domains."
    )


def describe(trial: Trial, classes: tuple[str, ...], stored_size: Sequence[int], facts: Mapping[str, Any]) -> Any:
    """Return the description of a model, without paths of this machine.

    Args:
        trial: The trial.
        classes: Names of the classes, in the order of the logits.
        stored_size: Height and width to which images are resized before the transform of the network; empty for other
            inputs.
        facts: Provenance of the run.
    """
    private = ("data", "weights", "bad")
    return {
        "algorithm": trial.label,
        "network": trial.training.network,
        "dataset": trial.dataset.title,
        "classes": list(classes),
        **({} if trial.dataset.task == "classification" else {"task": trial.dataset.task}),
        "domains": [trial.dataset.domains[number] for number in trial.train_domains],
        "held_out": [trial.dataset.domains[number] for number in trial.test_domains],
        "stored_size": list(stored_size),
        "input_shape": list(trial.dataset.transform(trial.training).shape),
        "provenance": {name: value for name, value in facts.items() if name not in private},
        "trial": trial.to_json(),
        "trial_id": trial.id,
        "torch": torch.__version__,
    }


def read_description(folder: Path) -> dict[str, Any]:
    """Read ``model.json`` in the folder of a model.

    Raises:
        IntegrityError: The file is not JSON, or a field is missing or has another form.
        UsageError: Another version of the package wrote the model.
    """
    try:
        description = read_json(folder / DESCRIPTION, MOST_BYTES)
    except UsageError as error:
        raise IntegrityError(f"{error} If the file was not changed, it is damaged: copy it again.") from error
    expected = ("format", "weights", "classes", "stored_size", "trial")
    missing = [name for name in expected if not isinstance(description, dict) or name not in description]
    if missing:
        raise IntegrityError(
            f"Expected the fields {', '.join(expected)} in {folder / DESCRIPTION}; found none named "
            f"{', '.join(missing)}. Restore the file from a copy."
        )
    if description["format"] not in (FORMAT, ENSEMBLE_FORMAT):
        raise UsageError(
            f"Expected a model of format {FORMAT} or {ENSEMBLE_FORMAT} in {folder}; found format "
            f"{description['format']}. Install the version that wrote it: pogm {version_of(description)}."
        )
    for name, (is_valid, form) in _FIELDS.items():
        if name in description and not is_valid(description[name]) and not _may_be_empty(name, description):
            raise IntegrityError(
                f"Expected {name} to be {form} in {folder / DESCRIPTION}; found {str(description[name])[:80]!r}. "
                "Restore the file from a copy."
            )
    result: dict[str, Any] = description
    return result


def _is_weights(value: Any) -> bool:
    names = ("file", "sha256", "bytes")
    return isinstance(value, dict) and [type(value.get(name)) for name in names] == [str, str, int]


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)


def _may_be_empty(name: str, description: Mapping[str, Any]) -> bool:
    """Return True for an empty field that the model does not need: classes of a regression, the size of no image."""
    needless = {
        "classes": description.get("task") == "regression",
        "stored_size": isinstance(description.get("input_shape"), list) and len(description["input_shape"]) < 3,
    }
    return description[name] == [] and needless.get(name, False)


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(value) > 0


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "weights": (_is_weights, "a file name with its sha256 and bytes"),
    "classes": (_is_list_of_names, "a list of names"),
    "stored_size": (_is_size, "height and width, above 0"),
    "provenance": (lambda value: isinstance(value, dict), "an object"),
}


def read_weights(folder: Path, description: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights and buffers of a model.

    Raises:
        IntegrityError: The file is missing, or differs from what was written.
    """
    expected = description["weights"]
    path = folder / Path(expected["file"]).name
    try:
        content = read_regular(path, WEIGHT_BYTES)
    except OSError as error:
        raise IntegrityError(
            f"Expected the weights in {path}; found: {error.strerror}. Copy the whole folder of the model."
        ) from error
    if len(content) != expected["bytes"] or digest(content) != expected["sha256"]:
        raise IntegrityError(
            f"Expected {expected['bytes']} bytes with SHA-256 {expected['sha256'][:12]}… in {path}; found "
            f"{len(content)} bytes with {digest(content)[:12]}…. Copy the file again, or train the model again."
        )
    try:
        return load_tensors(content)
    except SafetensorError as error:
        raise IntegrityError(f"Expected safetensors in {path}; found: {error}. Copy the file again.") from error


def read_members(folder: Path, description: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights and buffers of each member of an ensemble, or those of the model itself.

    Raises:
        IntegrityError: A file is missing, or differs from what was written.
    """
    is_ensemble = description["format"] == ENSEMBLE_FORMAT
    members = description.get("members") if is_ensemble else [description["weights"]]
    if not isinstance(members, list) or not members or not all(map(_is_weights, members)):
        raise IntegrityError(
            f"Expected members to be a list of files in {folder / DESCRIPTION}; found {str(members)[:80]!r}. "
            "Restore the file from a copy."
        )
    for weights in members:
        yield read_weights(folder, {"weights": weights})


def version_of(description: Mapping[str, Any]) -> str:
    """Return the version of the package that wrote a model, for errors."""
    provenance = description.get("provenance")
    return str(provenance.get("pogm", "of a later version")) if isinstance(provenance, dict) else "of a later version"


def _file_name(step: int) -> str:
    return f"weights-{step:08d}.safetensors"
