"""Costs of a plan from measurements that the package contains: GPU hours, memory and disk, without data or a GPU.

``reference_costs.json`` has the time and memory of a minibatch of ERM, and the time of an evaluation, for two networks
on one NVIDIA H200, in bf16 with compiled steps. They are taken from benchmarks/results (``speed_h200.json``,
``methods_h200.json``, ``pipeline.md``); ``compile_choice.py`` describes the costs of compilation. The cost of another
method is that of ERM times its ratio in ``costs.json``. Times are proportional to the number of images and of pixels.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pogm.benchmark.catalogue import cost_ratios
from pogm.benchmark.costs.disk_space import checkpoint_bytes, model_bytes
from pogm.benchmark.plan.shared_training import training_key
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.base import HOLDOUT, DomainDataset
from pogm.data.images.cache import LARGEST
from pogm.engine.checkpoint import KEPT
from pogm.engine.trainer import Schedule

RECORD_BYTES = 1000  # of one evaluation
FOLDER_BYTES = 5000  # of a finished run without its records and model
SAME_COST = {"resnet50_v1": "resnet50"}  # networks with the measured cost of another one


@dataclass(frozen=True)
class RunCost:
    """The cost of one run."""

    train_seconds: float | None  # on the reference device; None if the network or the method was not measured
    evaluation_seconds: float | None  # of all evaluations; None also if the number of images is not known
    gpu_gib: float | None  # peak


@cache
def reference_costs() -> dict[str, Any]:
    """Return the measurements, see the docstring of this module."""
    path = resources.files("pogm.benchmark") / "reference_costs.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def measured_network(name: str) -> dict[str, Any] | None:
    """Return the measurements of a network; None if it was not measured."""
    found: dict[str, Any] | None = reference_costs()["networks"].get(SAME_COST.get(name, name))
    return found


@cache
def count_images(dataset: DomainDataset) -> int | None:
    """Return the published number of images of a dataset, without reading it; None if it is not known."""
    counts: tuple[int, ...] = getattr(dataset, "counts", ())
    if counts:
        return sum(counts)
    found = re.search(r"Images: (\d+(?:, \d+)*)\.", type(dataset).__doc__ or "")
    return sum(map(int, found[1].split(", "))) if found else None


def run_cost(trial: Trial) -> RunCost:
    """Return the cost of one run on the reference device."""
    training, records = trial.training, _count_evaluations(trial.schedule)
    network = measured_network(training.network)
    shape = trial.dataset.transform(training).shape
    if network is None or len(shape) != 3:
        return RunCost(None, None, None)
    ratios = cost_ratios(trial.label, f"H200, {SAME_COST.get(training.network, training.network)}")
    if ratios is None:
        return RunCost(None, None, None)
    pixels = shape[1] * shape[2] / network["side"] ** 2
    size = pixels * training.batch_size * len(trial.train_domains) / network["images"]
    images = count_images(trial.dataset)
    one = network["evaluation_seconds"] / network["evaluated_images"] * pixels
    return RunCost(
        trial.steps * network["minibatch_seconds"] * size * ratios[0],
        None if images is None else records * images * one * _evaluated_share(trial),
        network["memory_gib"] * size * ratios[1],
    )


def record_bytes(trial: Trial) -> int:
    """Return the approximate size of a finished run without its model."""
    return FOLDER_BYTES + RECORD_BYTES * _count_evaluations(trial.schedule)


def _evaluated_share(trial: Trial) -> float:
    """Return the share of all images that an evaluation predicts, if all domains have equally many."""
    held_out = {"all": 1.0, "selection": len(trial.test_domains) / len(trial.dataset.domains), "validation": 0.0}
    return held_out[trial.evaluation] * (1 - HOLDOUT) + HOLDOUT


@cache
def _count_evaluations(schedule: Schedule) -> int:
    return len(schedule.points())


def cache_bytes(dataset: DomainDataset) -> int:
    """Return the size of the decoded images of a dataset of photographs in the cache; 0 for other datasets."""
    return sum(getattr(dataset, "counts", ())) * 3 * LARGEST**2


def reference_lines(trials: Iterable[tuple[Trial, float]], on_gpu: bool = True, keep_models: bool = True) -> list[str]:
    """Return the text for users: GPU hours and memory, then disk. Trials that share their training train once.

    Args:
        trials: Trials, each with the number of runs that cost as much.
        on_gpu: False if the runs use a CPU, for which there are no measurements.
        keep_models: False if the runs delete their models when they are done.
    """
    seconds = [0.0, 0.0]
    runs, timed, unevaluated, sized = 0.0, 0.0, 0.0, 0.0
    gpu_gib, checkpoint = 0.0, 0
    disk: dict[str, float] = {"models": 0.0, "records": 0.0}
    datasets: dict[DomainDataset, None] = {}
    trained: dict[str, float] = {}  # runs of each training
    for trial, count in trials:
        cost, key = run_cost(trial), training_key(trial)
        datasets.setdefault(trial.dataset)
        runs += count
        if cost.train_seconds is not None:
            timed += count
            seconds[0] += max(count - trained.get(key, 0.0), 0.0) * cost.train_seconds
            seconds[1] += count * (cost.evaluation_seconds or 0.0)
            unevaluated += count * (cost.evaluation_seconds is None)
            gpu_gib = max(gpu_gib, cost.gpu_gib or 0.0)
            trained[key] = max(count, trained.get(key, 0.0))
        if (size := model_bytes(trial)) is not None:
            sized += count
            disk["models"] += count * size * keep_models
            checkpoint = max(checkpoint, checkpoint_bytes(trial) or 0)
        disk["records"] += count * record_bytes(trial)
    lines = _time_lines(seconds, runs, timed, unevaluated, gpu_gib) if on_gpu else []
    if any(cached := [cache_bytes(dataset) for dataset in datasets]):
        disk["image cache"] = float(sum(cached))
    missing = f", without models of {runs - sized:.0f} runs of networks of unknown size" if round(runs - sized) else ""
    parts = ", ".join(f"{name} {size_text(value)}" for name, value in disk.items() if value)
    training = f" A run that trains keeps up to {size_text(KEPT * checkpoint)} of checkpoints." if checkpoint else ""
    lines.append(f"Disk: about {size_text(sum(disk.values()))} ({parts}){missing}.{training}")
    return lines


def _time_lines(seconds: list[float], runs: float, timed: float, unevaluated: float, gpu_gib: float) -> list[str]:
    reference = reference_costs()
    if not timed:
        return []
    hours = sum(seconds) / 3600
    which = "" if round(timed) == round(runs) else f" for {timed:.0f} of {runs:.0f} runs"
    text = f"Estimate{which} on one {reference['device']}: about {_rounded(hours)} GPU hours"
    evaluated = f" ({_rounded(seconds[1] / 3600)} of them for evaluations)" if seconds[1] else ""
    left_out = ", without evaluations of datasets of unknown size" if round(unevaluated) else ""
    return [
        f"{text}{evaluated}{left_out}, up to {gpu_gib:.1f} GiB of GPU memory. It is scaled by batch and image size "
        f"from measurements in {reference['precision']} with compiled steps; other devices and precisions differ."
    ]


def _rounded(value: float) -> str:
    """Return a number with two digits: 0.12, 3.4, 56, 7,800."""
    if value <= 0:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}" if value < 10 else f"{round(value, 1 - math.floor(math.log10(value))):,.0f}"


def size_text(count: float) -> str:
    """Return a number of bytes as text in a suitable unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def weigh(trials: Iterable[tuple[Trial, int]], left: Mapping[tuple[str, str], float]) -> Iterable[tuple[Trial, float]]:
    """Multiply the number of runs of each trial by the share of its dataset and label that is left to run."""
    return ((trial, count * left.get((trial.dataset.title, trial.label), 0.0)) for trial, count in trials)
