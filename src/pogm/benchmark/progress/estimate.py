"""Estimates of the time and memory of a plan, by measuring a few steps of each kind of trial."""

import resource
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pogm.benchmark.executors.worker import Worker
from pogm.benchmark.plan.shared_training import share_training
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import use_threads
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.runner import run_batch
from pogm.engine.session import Session

MEASURE_SECONDS = 0.3  # duration of the measured steps of one kind of trial
SLOW_SECONDS = 1.0  # of a minibatch and an evaluation


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
    data and weights. With a large network on a CPU it takes minutes for each kind. Trials that share their training
    train once.
    """
    found, trained = [], {group[0].id for group in share_training(trials)}
    for (dataset, label), alike in _kinds(trials).items():
        middle = statistics.median_low([trial.training.batch_size for trial in alike])
        sample = next(trial for trial in alike if trial.training.batch_size == middle)
        with use_threads(options.threads):
            minibatch, evaluation, memory = measure_cost(sample, options)
            rest = _measure_rest(sample, options, minibatch + evaluation)
        training = [trial for trial in alike if trial.id in trained]
        minibatches = sum(trial.steps * trial.training.batch_size for trial in training) / middle
        evaluations = sum(len(trial.schedule.points()) for trial in alike)
        seconds = minibatch * minibatches + evaluation * evaluations + rest * len(alike)
        found.append(Estimate(dataset, label, len(alike), seconds, memory))
    return found


def _measure_rest(trial: Trial, options: RunOptions, one_step: float) -> float:
    """Measure the seconds of a run besides its minibatches and evaluations: set-up, files and metrics.

    It is 0 where it does not matter: for slow networks. On a GPU, the trials of a batch share it.
    """
    if one_step > SLOW_SECONDS or options.engine.torch_device().type != "cpu":
        return 0.0
    alone = replace(options, trackers=(), launch=None)  # no other process of torchrun takes part
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those about a model that diverges, which does not matter here
        start = time.monotonic()
        run_batch([replace(trial, steps=1, evaluate_every=1)], [Path(folder) / "run"], alone)
        return max(time.monotonic() - start - one_step, 0.0)


def measure_start() -> float:
    """Measure the seconds in which the first process for runs starts; the next ones start at once."""
    start = time.monotonic()
    Worker().close()
    return time.monotonic() - start


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
