"""Costs of the runs of a sweep, predicted from the runs that have begun, for the time left."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pvariance

from pogm.benchmark.catalogue import cost_ratios
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, RECORDS, TRIAL
from pogm.benchmark.results.record_file import Record, finite

OVERHEADS = (256, 0, 16, 64, 1024, 4096)  # candidates for the fixed cost of a step, as a number of images; 256: default


@dataclass(frozen=True)
class RunTimes:
    """Measured times of one run in seconds."""

    per_step: float  # minibatch of all domains, without the first one
    first_step: float  # includes compilation
    per_evaluation: float | None  # includes set-up, checkpoints and metrics; None if the run was interrupted
    batch: float  # a measured time that identifies the batch: exactly equal for runs that train in one batch


@dataclass(frozen=True)
class _Kind:
    """Properties of a run that determine its cost."""

    dataset: str
    label: str
    images: int  # of a step, on all domains
    steps: int
    evaluations: int
    column: str  # of costs.json

    @classmethod
    def of(cls, trial: Trial, on_gpu: bool) -> "_Kind":
        return cls(
            dataset=trial.dataset.title,
            label=trial.label,
            images=trial.training.batch_size * len(trial.train_domains),
            steps=trial.steps,
            evaluations=len(trial.schedule.points()),
            column=f"{'H200' if on_gpu else 'CPU'}, {'resnet50' if trial.dataset.large else 'mnist_cnn'}",
        )


def read_times(folder: Path, records: Sequence[Record], was_interrupted: bool = False) -> RunTimes | None:
    """Return the times of a run from its records and from the times of its files; None before its second record.

    Args:
        folder: The run directory.
        records: Its records, in the order of their steps.
        was_interrupted: True if the run was continued, so that the times of its files contain a pause.
    """
    steps = [record["step"] for record in records]
    seconds = [finite(record.get("seconds_per_step")) for record in records]
    if len(records) < 2 or steps[-1] <= steps[0] or any(map(math.isnan, seconds)):
        return None
    first = seconds[0] * (steps[0] + 1)
    trained = sum(time * (step - last) for time, step, last in zip(seconds[1:], steps[1:], steps, strict=False))
    other = None
    if not was_interrupted:
        try:
            end = folder / DONE if (folder / DONE).exists() else folder / RECORDS
            wall = end.stat().st_mtime - (folder / TRIAL).stat().st_mtime
        except OSError:  # deleted by another process
            return None
        other = max(wall - first - trained, 0.0) / len(records)
    return RunTimes(trained / (steps[-1] - steps[0]), first, other, seconds[1])


class RunCosts:
    """Costs of runs: start, minibatches and evaluations.

    The time of a minibatch is level · (overhead + images), where the level depends on dataset and algorithm, and the
    overhead on the dataset. Both are fitted to the runs that have begun. The level of an algorithm that has no run yet
    is that of the others, times the ratio in ``costs.json``. A dataset that has no run yet is taken to be like the
    others.

    Args:
        trials: All trials of the sweep.
        on_gpu: They run on a GPU.
    """

    def __init__(self, trials: Iterable[Trial], on_gpu: bool = False):
        self.kinds = {trial.id: _Kind.of(trial, on_gpu) for trial in trials}
        self.times: dict[str, RunTimes] = {}  # by id; filled by the caller

    def predict(self) -> dict[str, float]:
        """Return the cost of every trial by id: in seconds, or relative to each other if no run has begun."""
        sharing = Counter(times.batch for times in self.times.values())
        measured: dict[str, list[tuple[_Kind, RunTimes, int]]] = {}
        for name, times in self.times.items():
            kind = self.kinds[name]
            measured.setdefault(kind.dataset, []).append((kind, times, sharing[times.batch]))
        everything = [run for runs in measured.values() for run in runs]
        costs: dict[_Kind, float] = {}
        for dataset in {kind.dataset for kind in self.kinds.values()}:
            kinds = {kind for kind in self.kinds.values() if kind.dataset == dataset}
            costs |= _predict_dataset(kinds, measured.get(dataset, everything))
        return {name: costs[kind] for name, kind in self.kinds.items()}


def _predict_dataset(kinds: set[_Kind], runs: Sequence[tuple[_Kind, RunTimes, int]]) -> dict[_Kind, float]:
    """Return the cost of each kind of run on one dataset, from measured runs and the number of runs in their batch."""
    steps: dict[str, list[tuple[int, float]]] = {}  # by label: images and time of a minibatch
    for kind, times, count in runs:
        steps.setdefault(kind.label, []).append((kind.images, times.per_step / count))
    overhead = min(OVERHEADS, key=lambda images: _spread(images, steps.values()))
    levels = {label: fmean(time / (overhead + images) for images, time in found) for label, found in steps.items()}
    first = median(times.first_step / count for _, times, count in runs) if runs else 0.0
    others = [times.per_evaluation / count for _, times, count in runs if times.per_evaluation is not None]
    evaluation = median(others) if others else 0.0
    costs = {}
    for kind in kinds:
        level = levels.get(kind.label) or _unknown_level(kind, levels)
        costs[kind] = first + (kind.steps - 1) * level * (overhead + kind.images) + kind.evaluations * evaluation
    return costs


def _spread(overhead: int, steps: Iterable[Sequence[tuple[int, float]]]) -> float:
    """Return how much the levels of runs of one algorithm differ; 0 if no two runs have different numbers of images."""
    spread = 0.0
    for found in steps:
        if len({images for images, _ in found}) > 1:
            logs = [math.log(max(time, 1e-9) / (overhead + images)) for images, time in found]
            spread += pvariance(logs) * len(logs)
    return spread


def _unknown_level(kind: _Kind, levels: dict[str, float]) -> float:
    """Return the level of an algorithm that has no run yet from those of the others; relative to ERM without them."""
    own = cost_ratios(kind.label, kind.column)
    ratios = {}
    for label in levels or ("ERM",):
        other = cost_ratios(label, kind.column)
        ratios[label] = own[0] / other[0] if own and other else 1.0
    return fmean(ratio * levels.get(label, 1.0) for label, ratio in ratios.items())
