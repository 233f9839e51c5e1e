"""Metrics of the selected model of a run, computed once from the stored weights when the run ends: ``metrics.json``.

They are those of the images that the tables report: the *in* split of each held-out domain, and the *out* split of each
training domain, all without augmentation. A run with ``evaluation="validation"`` does not predict held-out domains.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json, write_atomic
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.classification import classification_metrics, fit_temperature, scale_temperature, softmax
from pogm.benchmark.results.model_metrics import METRICS
from pogm.benchmark.results.regression import regression_metrics
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL, read_description, read_weights
from pogm.core.plugins import Plugins
from pogm.engine.sampling import SPLITS
from pogm.engine.session import Session

FORMAT = 1  # version of the file

Array = npt.NDArray[Any]
Part = tuple[int, str]  # number of a domain, and one of `SPLITS`


class MetricsWarning(UserWarning):
    """The metrics of a selected model were not computed."""


def write_metrics(run: Path, trial: Trial, session: Session, row: int = 0) -> None:
    """Predict with the selected model of a run, and write its metrics into the run directory.

    Nothing is written if the run has no selected model, or if its logits are not finite.

    Args:
        run: Run directory, with the selected model in it.
        trial: The trial.
        session: Session of the run. Its images are used again.
        row: Index of the trial in the session.
    """
    if not (run / MODEL / DESCRIPTION).is_file():  # a run that an earlier version began
        return
    description = read_description(run / MODEL)
    parts = reported_parts(trial)
    segments = [number * len(SPLITS) + SPLITS.index(split) for number, split in parts]
    predictions = session.predict(read_weights(run / MODEL, description), segments, row)
    save_metrics(run, trial, description, dict(zip(parts, predictions, strict=True)))


def save_metrics(
    run: Path, trial: Trial, description: Mapping[str, Any], predictions: Mapping[Part, tuple[Tensor, Tensor]]
) -> None:
    """Write the metrics of a model into a run directory, given its logits and labels on the reported parts."""
    names = trial.dataset.domains
    if bad := [names[number] for (number, _), found in predictions.items() if not found[0].isfinite().all()]:
        text = f"The logits of the selected model in {run} are not finite on {', '.join(bad)}: {METRICS} was left out."
        warnings.warn(text, MetricsWarning, stacklevel=3)
        return
    describe = _describe_regression if trial.dataset.task == "regression" else _describe_classifier
    content: dict[str, Any] = {
        "format": FORMAT,
        "selection": description["selection"],
        "held_out": [names[number] for number in trial.test_domains],
        **describe(predictions, trial, description["classes"]),
    }
    for (number, split), found in predictions.items():
        if others := compute_plugin_metrics(content["task"], *(part.numpy() for part in found)):
            content["domains"][names[number]][split]["plugins"] = others
    write_atomic(run / METRICS, canonical_json(content).encode() + b"\n")


def _check_metric(name: str, metric: object) -> None:
    if not callable(metric):
        raise UsageError(
            f"Expected the metric {name} to be a function of outputs and labels; found {type(metric).__name__}. "
            "Return a number, or None if it does not apply to the task."
        )


PLUGINS = Plugins("metric", _check_metric)


def compute_plugin_metrics(task: str, outputs: Array, labels: Array) -> dict[str, float]:
    """Return the metrics of other packages, by name. One that fails is left out with a `MetricsWarning`.

    Args:
        task: "classification" or "regression".
        outputs: Logits [N, C], which the metrics get as probabilities; or predictions [N, 1] of a regression.
        labels: Class indices or targets [N].
    """
    names = PLUGINS.names()
    if not names:
        return {}
    given = outputs.squeeze(-1) if task == "regression" else softmax(outputs)
    found = {}
    for name in names:
        try:
            value = PLUGINS.load(name)(given, labels)
            if value is not None and math.isfinite(value):
                found[name] = float(value)
        except Exception as error:  # a metric of another package must not fail a run that is done
            reason = f"{type(error).__name__}: {error}"
            text = f"The metric {name} of {PLUGINS.package(name)} failed and is left out. {reason}"
            warnings.warn(text, MetricsWarning, stacklevel=3)
    return found


def reported_parts(trial: Trial) -> list[Part]:
    """Return the parts of the data that are predicted."""
    held_out = () if trial.evaluation == "validation" else trial.test_domains
    return [*((number, "in") for number in held_out), *((number, "out") for number in trial.train_domains)]


def _describe_classifier(
    predictions: Mapping[Part, tuple[Tensor, Tensor]], trial: Trial, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the entries of ``metrics.json`` for a classifier.

    The temperature is fitted on the *out* splits of the training domains.
    """
    validation = [found for (number, _), found in predictions.items() if number in trial.train_domains]
    logits, labels = (torch.cat(parts).numpy() for parts in zip(*validation, strict=True))
    temperature = fit_temperature(logits, labels)
    domains: dict[str, dict[str, Any]] = {}
    for (number, split), (z, y) in predictions.items():
        found = classification_metrics(softmax(z.numpy()), y.numpy(), classes).to_json()
        scaling = scale_temperature(z.numpy(), y.numpy(), temperature).to_json()
        domains.setdefault(trial.dataset.domains[number], {})[split] = found | {"temperature_scaling": scaling}
    return {"task": "classification", "temperature": temperature, "domains": domains}


def _describe_regression(
    predictions: Mapping[Part, tuple[Tensor, Tensor]], trial: Trial, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the entries of ``metrics.json`` for a regression."""
    domains: dict[str, dict[str, Any]] = {}
    for (number, split), (outputs, y) in predictions.items():
        found = regression_metrics(outputs.squeeze(-1).numpy(), y.numpy())
        domains.setdefault(trial.dataset.domains[number], {})[split] = found.to_json()
    return {"task": "regression", "domains": domains}
