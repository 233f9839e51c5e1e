"""Estimates of the time and memory of a plan, by measuring a few steps of each kind of trial."""

import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import use_threads
from pogm.benchmark.runs.options import RunOptions
from pogm.engine.session import Session

MEASURE_SECONDS = 0.3  # duration of the measured steps of one kind of trial


@dataclass(frozen=True)
class Estimate:
    """Cost of all trials of one kind: one algorithm with its modifiers on one dataset."""

    dataset: str
    label: str
    runs: int
    seconds: float  # process time of all runs together
    memory_gb: float  # peak of one process


def estimates(trials: Sequence[Trial], options: RunOptions) -> list[Estimate]:
    """Estimate the cost of trials by training and evaluating one trial of each kind for a few steps.

    The trial of median batch size is measured; the time of the others is proportional to their batch size. This reads
    data and weights. With a large network on a CPU it takes minutes for each kind.
    """
    found = []
    for (dataset, label), alike in _kinds(trials).items():
        middle = statistics.median_low([trial.training.batch_size for trial in alike])
        sample = next(trial for trial in alike if trial.training.batch_size == middle)
        with use_threads(options.threads):
            minibatch, evaluation, memory = measure_cost(sample, options)
        minibatches = sum(trial.steps * trial.training.batch_size for trial in alike) / middle
        evaluations = sum(len(trial.schedule.points()) for trial in alike)
        seconds = minibatch * minibatches + evaluation * evaluations
        found.append(Estimate(dataset, label, len(alike), seconds, memory))
    return found


def duration(seconds: float) -> str:
    """Return a duration as text in a suitable unit: seconds, minutes, hours or days."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _kinds(trials: Sequence[Trial]) -> dict[tuple[str, str], list[Trial]]:
    """Group trials by dataset and label."""
    kinds: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        kinds.setdefault((trial.dataset.title, trial.label), []).append(trial)
    return kinds


def measure_cost(trial: Trial, options: RunOptions) -> tuple[float, float, float]:
    """Measure seconds per minibatch, seconds per evaluation, and memory in GiB."""
    options.enter()
    engine = replace(options.engine, compile="off")  # compilation would take longer than the measurement
    session = Session([trial.task(options.data)], engine)
    for probing in (True, False):  # the first steps capture graphs and allocate memory
        session.step(probing)
    session.accuracies()  # waits for the device
    start, rounds = time.monotonic(), 0
    while time.monotonic() - start < MEASURE_SECONDS:
        rounds += 1
        session.step(trial.probe.measures(rounds))
    session.diverged()  # waits for the device
    minibatch = (time.monotonic() - start) / (rounds * trial.algorithm.minibatches)
    start = time.monotonic()
    session.accuracies()
    evaluation = time.monotonic() - start
    if session.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(session.device) / 2**30
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return minibatch, evaluation, memory
