"""How long a sweep will take, and how much memory: measured on a few steps of each kind of trial."""

import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import threads
from pogm.benchmark.runs.runner import Settings
from pogm.engine.session import Session

ENOUGH = 0.3  # seconds of steps


@dataclass(frozen=True)
class Estimate:
    """The cost of all trials of one algorithm on one dataset."""

    dataset: str
    label: str
    runs: int
    seconds: float  # of one process, for all of them
    memory_gb: float  # of one process


def estimates(trials: Sequence[Trial], settings: Settings) -> list[Estimate]:
    """One for each dataset and algorithm, from its trial of median batch size; others cost in proportion."""
    kinds: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        kinds.setdefault((trial.dataset.title, trial.label), []).append(trial)
    found = []
    for (dataset, label), alike in kinds.items():
        middle = statistics.median_low([trial.training.batch_size for trial in alike])
        sample = next(trial for trial in alike if trial.training.batch_size == middle)
        with threads(settings.threads):
            minibatch, evaluation, memory = _measured(sample, settings)
        share = sum(trial.steps * trial.training.batch_size for trial in alike) / middle
        looks = sum(len(trial.schedule.points()) for trial in alike)
        found.append(Estimate(dataset, label, len(alike), minibatch * share + evaluation * looks, memory))
    return found


def _measured(trial: Trial, settings: Settings) -> tuple[float, float, float]:
    """Seconds per minibatch and per evaluation, and the memory in use."""
    settings.enter()
    engine = replace(settings.engine, compile="off")  # what is compiled is faster, after a minute or so
    session = Session([trial.task(settings.data)], engine)
    for probing in (True, False):  # the first steps compile, capture and allocate
        session.step(probing)
    session.accuracies()  # waits for the device
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < ENOUGH:
        rounds += 1
        session.step(trial.probe.measures(rounds))
    session.diverged()
    minibatch = (time.monotonic() - began) / (rounds * trial.algorithm.minibatches)
    began = time.monotonic()
    session.accuracies()
    evaluation = time.monotonic() - began
    if session.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(session.device) / 2**30
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return minibatch, evaluation, memory


def duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
