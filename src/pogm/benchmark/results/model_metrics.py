"""Metrics of selected models: read ``metrics.json`` of run folders, and show them as a table.

Runs of earlier versions and of DomainBed have no such file; they are left out.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pogm._system.files import read_json
from pogm._system.saved import check_form
from pogm.benchmark.results.record_file import NUMBER, RecordWarning, finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Choice
from pogm.benchmark.results.table import Column, Row, Table, estimate

METRICS = "metrics.json"
MOST_BYTES = 1 << 28  # of the file: it has a confusion matrix for each domain
MOST_IMAGES = 1 << 40  # of one cell of a confusion matrix
FORM = {"task?": str, "selection": {"step": int}, "held_out": [str], "domains": {str: {}}}  # of the file
REGRESSION_FORM = {"n": int, "r2": NUMBER, "rmse": NUMBER, "mae": NUMBER, "plugins?": {}}  # of a held-out domain
CLASSIFICATION_FORM = {
    "n": int,
    "balanced_accuracy": {"value": NUMBER},
    "macro_f1": NUMBER,
    "auroc": NUMBER,
    "temperature_scaling": {"before": NUMBER, "after": NUMBER},
    "confusion": {"classes": [str], "counts": [list]},
    "plugins?": {},
}
KEPT = 4096  # runs whose metrics stay in memory, since several tables and a live page need them


class HeldOutMetrics(NamedTuple):
    """Metrics on the *in* split of one held-out domain; NaN if undefined."""

    task: str
    images: int  # or samples that are not images
    values: Mapping[str, float]  # by the key of a column: percentages of a classifier, errors of a regression
    others: Mapping[str, float] = {}  # metrics of other packages, by name


class ModelMetrics(NamedTuple):
    """Metrics of the selected model of one run."""

    step: int  # step of the model
    held_out: Mapping[str, HeldOutMetrics]  # by domain


class Confusion(NamedTuple):
    """Confusion matrix of the selected models for one algorithm and held-out domain, summed over trials."""

    label: str
    domain: str
    classes: tuple[str, ...]
    counts: npt.NDArray[np.int64]  # [C, C]: number of images by true class (row) and predicted class (column)


def read_metrics(run: Run) -> ModelMetrics | None:
    """Return the metrics of the selected model of a finished run; None if there are none.

    A file that cannot be read is left out with a `RecordWarning`.
    """
    path = run.folder / METRICS
    try:
        return _read(path, path.stat().st_mtime_ns) if run.done else None
    except OSError:
        return None


def count_test_images(runs: Iterable[Run], choices: Iterable[Choice]) -> dict[int, int]:
    """Return the number of test images of each held-out domain, by its index, if it is known.

    If the splits of the trials differ in size, it is the smallest number.
    """
    by_id = {run.id: run for run in runs}
    found: dict[int, int] = {}
    for choice in choices:
        if (known := _of_domain(by_id, choice)) is not None:
            found[choice.domain] = min(known.images, found.get(choice.domain, known.images))
    return found


def selected_metrics_table(runs: Sequence[Run], dataset: str) -> Table | None:
    """Return the metrics of the selected models on one dataset, or None if no run has them.

    One row for each algorithm and held-out domain: mean and standard error over trials, under training-domain
    validation. Metrics of classes, or R², RMSE and MAE of a regression.
    """
    runs = [run for run in runs if run.dataset == dataset]
    rows, cells = [], _by_cell(runs)
    if not cells:
        return None
    task = next(each.task for found in cells.values() for _, each in found)
    columns, note = TASKS[task]
    same_task = {cell: [one for one in found if one[1].task == task] for cell, found in cells.items()}
    cells = {cell: found for cell, found in same_task.items() if found}
    others = sorted({name for found in cells.values() for _, each in found for name in each.others})
    for (label, domain), found in cells.items():
        metrics = [each for _, each in found]
        means = [estimate(each.values[column.key] for each in metrics) for column in columns]
        means += [estimate(each.others.get(name, math.nan) for each in metrics) for name in others]
        rows.append(Row((label, domain, min(each.images for each in metrics), *means), group=label))
    first = (
        Column("algorithm", "Algorithm", kind="text"),
        Column("held_out", "Held out", kind="text"),
        Column("test_images", "Test samples", kind="number"),
    )
    added = tuple(_number(name, name) for name in others)
    about = (f"In their own units, from other packages: {', '.join(others)}.",) if others else ()
    counts = [len(found) for found in cells.values()]
    unless = ", unless a cell says otherwise" if min(counts) < max(counts) else ""
    trials = f"n = {max(counts)} trial{'s' * (max(counts) > 1)}{unless}."
    title = f"{dataset}: metrics of the selected models"
    return Table(title, (*first, *columns, *added), tuple(rows), TRAINING_DOMAIN, (trials, note, *about))


def confusions(runs: Sequence[Run], dataset: str) -> list[Confusion]:
    """Return the confusion matrix of each algorithm and held-out domain, under training-domain validation.

    A regression has none.
    """
    runs = [run for run in runs if run.dataset == dataset]
    found = []
    for (label, domain), chosen in _by_cell(runs).items():
        if chosen[0][1].task == "regression":
            continue
        matrices = [
            read_json(run.folder / METRICS, MOST_BYTES)["domains"][domain]["in"]["confusion"] for run, _ in chosen
        ]
        classes = matrices[0]["classes"]
        counts = sum(np.array(matrix["counts"], np.int64) for matrix in matrices if matrix["classes"] == classes)
        found.append(Confusion(label, domain, tuple(classes), np.asarray(counts)))
    return found


def _percent(key: str, title: str) -> Column:
    return Column(key, title, unit="%", per_trial=True, missing="-", csv_prefix=f"{key}_")


def _number(key: str, title: str, digits: str = ".3f") -> Column:
    formats = {"digits": digits, "error_digits": digits, "csv_digits": ".6g"}
    return Column(key, title, **formats, per_trial=True, missing="-", csv_prefix=f"{key}_")  # type: ignore[arg-type]


TASKS = {  # columns of the metrics, and a note about them
    "classification": (
        (
            _percent("balanced_accuracy", "Balanced accuracy"),
            _percent("macro_f1", "Macro F1"),
            _percent("auroc", "AUROC"),
            _percent("ece", "ECE"),
            _percent("ece_scaled", "ECE after scaling"),
        ),
        "In percent, on the test samples of the held-out domain; ± is the standard error over trials. Balanced "
        "accuracy and macro F1 are means over the classes that have samples; AUROC is the mean over classes of one "
        "class against the rest; ECE is the expected calibration error, before and after temperature scaling with the "
        "temperature of the validation samples of the training domains.",
    ),
    "regression": (
        (_number("r2", "R²"), _number("rmse", "RMSE", ".4g"), _number("mae", "MAE", ".4g")),
        "On the test samples of the held-out domain; ± is the standard error over trials. R² is 0 for a constant "
        "prediction, the mean of these targets. RMSE and MAE are in the unit of the targets.",
    ),
}


def _by_cell(runs: Sequence[Run]) -> dict[tuple[str, str], list[tuple[Run, HeldOutMetrics]]]:
    """Return the chosen runs and their metrics by label and held-out domain; only runs whose model was chosen."""
    by_id = {run.id: run for run in runs}
    cells: dict[tuple[str, str], list[tuple[Run, HeldOutMetrics]]] = {}
    for choice in TRAINING_DOMAIN(runs):
        found = _of_domain(by_id, choice, only_selected=True)
        if found is not None and choice.run is not None:
            run = by_id[choice.run]
            cells.setdefault((choice.label, run.domains[choice.domain]), []).append((run, found))
    return cells


def _of_domain(by_id: Mapping[str, Run], choice: Choice, *, only_selected: bool = False) -> HeldOutMetrics | None:
    """Return the metrics of the chosen run on the held-out domain.

    Args:
        by_id: The runs.
        choice: The chosen run and step.
        only_selected: Return None if the stored model is of another step than the chosen one.
    """
    if choice.accuracy is None or choice.run is None:
        return None
    run = by_id[choice.run]
    metrics = read_metrics(run)
    if metrics is None or (only_selected and metrics.step != choice.step):
        return None
    return metrics.held_out.get(run.domains[choice.domain])


@lru_cache(KEPT)
def _read(path: Path, modified: int) -> ModelMetrics | None:
    """Read a file. It is read again if it was modified later."""
    try:
        content = read_json(path, MOST_BYTES)
        check_form(content, FORM, METRICS)
        domains, task = content["domains"], content.get("task", "classification")
        if task not in TASKS:
            raise ValueError(f"expected a task out of {', '.join(TASKS)}, found {task!r}")
        held_out = {name: _held_out(task, domains[name].get("in")) for name in content["held_out"] if name in domains}
        return ModelMetrics(content["selection"]["step"], held_out)
    except (OSError, ValueError) as error:
        warnings.warn(f"{path}: metrics left out ({type(error).__name__}: {error})", RecordWarning, stacklevel=4)
        return None


def _held_out(task: str, found: Any) -> HeldOutMetrics:
    if task == "regression":
        check_form(found, REGRESSION_FORM, "domains")
        values = {name: finite(found[name]) for name in ("r2", "rmse", "mae")}
    else:
        check_form(found, CLASSIFICATION_FORM, "domains")
        _check_confusion(found["confusion"])
        scaling = found["temperature_scaling"]
        shares = {name: found[name] for name in ("macro_f1", "auroc")} | {
            "balanced_accuracy": found["balanced_accuracy"]["value"],
            "ece": scaling["before"],
            "ece_scaled": scaling["after"],
        }
        values = {name: 100 * finite(share) for name, share in shares.items()}
    others = {str(name): finite(value) for name, value in found.get("plugins", {}).items()}
    return HeldOutMetrics(task, found["n"], values, others)


def _check_confusion(matrix: Mapping[str, Any]) -> None:
    counts, classes = np.array(matrix["counts"]), len(matrix["classes"])
    if counts.shape != (classes, classes) or counts.dtype != np.int64 or counts.max() > MOST_IMAGES:
        raise ValueError(f"expected a confusion matrix of {classes} classes, found another one")
