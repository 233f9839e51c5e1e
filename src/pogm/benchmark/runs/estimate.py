"""Estimates of the time and memory of a plan: quickly from earlier records, or by measuring a few steps."""

import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pogm.benchmark.catalogue import costs
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RECORDS, TRIAL
from pogm.benchmark.results.records import read_records, read_trial_file
from pogm.benchmark.runs.context import use_threads
from pogm.benchmark.runs.options import RunOptions
from pogm.engine.session import Session

MEASURE_SECONDS = 0.3  # duration of the measured steps of one kind of trial
READ_SECONDS = 3.0  # limit for reading earlier records
UNKNOWN = "time unknown"
HOW_TO_MEASURE = "There are no earlier records of such runs. Measure a few steps of each kind to estimate it."


@dataclass(frozen=True)
class PlanEstimate:
    """The cost of all trials of one kind: one algorithm with its modifiers on one dataset."""

    dataset: str
    label: str
    runs: int
    seconds: float | None  # process time of all runs together; None if unknown
    memory_gb: float | None  # peak of one process; None if unknown
    source: str = "measured"  # "measured", "records", "records of ERM and costs.json", or "" if unknown


@dataclass(frozen=True)
class Estimate(PlanEstimate):
    """A measured estimate: time and memory are known."""

    seconds: float
    memory_gb: float


@dataclass(frozen=True)
class _Cost:
    """The cost of one earlier run."""

    label: str
    network: str
    batch_size: int
    seconds: float  # per minibatch; the share of one trial if it was trained in a batch
    memory_gb: float | None


def estimate_from_records(
    trials: Sequence[Trial], folders: Iterable[Path] = (), on_gpu: bool = False
) -> list[PlanEstimate]:
    """Estimate the cost of trials from earlier runs, without data, weights, a GPU or measuring.

    The time of a kind of trial is taken from earlier runs of the same kind. If there are none, it is taken from runs of
    another algorithm with the same dataset and network, times the ratio of both algorithms in ``costs.json``. Otherwise
    it is unknown. Times are those of training: records do not contain the time of evaluations. Reading stops after
    `READ_SECONDS`, so that this function returns within seconds for any number of runs.

    Args:
        trials: The planned trials.
        folders: Folders with earlier runs, such as the folder of the sweep itself. Folders that do not exist, and runs
            that cannot be read, are ignored.
        on_gpu: Use runs on a GPU only; otherwise, runs on a CPU only.

    Returns:
        One estimate for each dataset and label, in the order of the trials.
    """
    earlier: dict[str, list[_Cost]] = {}
    for dataset, cost in _read_costs(folders, on_gpu):
        earlier.setdefault(dataset, []).append(cost)
    estimates = []
    for (dataset, label), alike in _kinds(trials).items():
        network = alike[0].training.network
        known = [cost for cost in earlier.get(dataset, ()) if cost.network == network]
        column = f"{'H200' if on_gpu else 'CPU'}, {'resnet50' if alike[0].dataset.large else 'mnist_cnn'}"
        seconds, memory, source = _from_costs(known, label, column)
        if seconds is not None:
            seconds *= sum(trial.steps * trial.training.batch_size for trial in alike)
        estimates.append(PlanEstimate(dataset, label, len(alike), seconds, memory, source))
    return estimates


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


def estimate_lines(kinds: Sequence[PlanEstimate], workers: int = 1) -> list[str]:
    """Return the text for users: one line for each kind of trial, then the total.

    Args:
        kinds: Estimates of all kinds of trials of a plan.
        workers: Number of processes that share the runs.
    """
    lines = []
    for kind in kinds:
        time_text = UNKNOWN if kind.seconds is None else duration(kind.seconds)
        memory_text = "" if kind.memory_gb is None else f"  {kind.memory_gb:.1f} GB each"
        lines.append(f"{kind.dataset}  {kind.label}  {kind.runs} runs  {time_text}{memory_text}")
    runs = sum(kind.runs for kind in kinds)
    known = [kind.seconds for kind in kinds if kind.seconds is not None]
    processes = f"{workers} process{'es' * (workers > 1)}"
    if not known:
        return [*lines, f"{runs} runs, {UNKNOWN}. {HOW_TO_MEASURE}"]
    total = f"{runs} runs, about {duration(sum(known) / workers)} on {processes}"
    if len(known) == len(kinds):
        return [*lines, f"{total}."]
    unknown = sum(kind.runs for kind in kinds if kind.seconds is None)
    return [*lines, f"{total}, without {unknown} runs of unknown time. {HOW_TO_MEASURE}"]


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


def _from_costs(known: Sequence[_Cost], label: str, column: str) -> tuple[float | None, float | None, str]:
    """Return seconds per minibatch and image of each domain, memory, and the source of both."""
    by_label: dict[str, list[_Cost]] = {}
    for cost in known:
        by_label.setdefault(cost.label, []).append(cost)
    for other in sorted(by_label, key=lambda name: (name != label, name != "ERM")):
        factor = 1.0 if other == label else cost_ratio(label, other, column)
        if factor is not None:
            seconds = statistics.median(cost.seconds / cost.batch_size for cost in by_label[other])
            memory = max((c.memory_gb for c in by_label[other] if c.memory_gb), default=None) if factor == 1.0 else None
            return seconds * factor, memory, "records" if other == label else f"records of {other} and costs.json"
    return None, None, ""


def cost_ratio(label: str, other: str, column: str) -> float | None:
    """Return the time of a minibatch of one label divided by that of another; None if one is not in costs.json."""
    times = []
    for name in (label, other):
        time_over_erm = 1.0
        for part in name.split(" + "):
            text = costs().get(part, {}).get(column)
            if text is None:
                return None
            time_over_erm *= float(text.split(" · ")[0])
        times.append(time_over_erm)
    return times[0] / times[1]


def _read_costs(folders: Iterable[Path], on_gpu: bool) -> Iterator[tuple[str, _Cost]]:
    """Read the costs of earlier runs, with the title of their dataset, until the time limit."""
    deadline = time.monotonic() + READ_SECONDS
    found = []
    shares: Counter[tuple[float, ...]] = Counter()
    for folder in folders:
        for path in (folder / TRIAL, *folder.glob(f"*/{TRIAL}")):
            if time.monotonic() > deadline:
                break
            try:
                saved = read_trial_file(path.parent)
                lines = read_records(path.parent / RECORDS)
                trial = saved["trial"]
                if (saved["provenance"]["device"] != "cpu") != on_gpu:
                    continue
                times = [line["seconds_per_step"] for line in lines[1:]]  # the first one includes compilation
                seconds = tuple(float(value) for value in times if value is not None)
                if not seconds:
                    continue
                title = str(trial["dataset"].get("title", trial["dataset"]["name"]))
                network, size = trial["training"]["network"], trial["training"]["batch_size"]
                memory = float(lines[-1]["memory_gb"]) or None
                found.append((title, _Cost(saved["label"], network, size, statistics.median(seconds), memory), seconds))
                shares[seconds] += 1
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # an estimate does not need every run
    for title, cost, seconds in found:  # trials of one batch have the same times to the last digit
        yield title, replace(cost, seconds=cost.seconds / shares[seconds])


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
