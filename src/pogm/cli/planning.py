"""Plans of many runs: how many there are, how many are done, and how long the rest will take.

This module imports torch. Commands import it when they run.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pogm._system.terminal import print_line
from pogm.benchmark.costs.reference import reference_lines, weigh
from pogm.benchmark.plan.datasets import find_dataset, locate
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.estimate import duration, estimates, measure_start
from pogm.benchmark.progress.run_progress import show_image_progress
from pogm.benchmark.results.record_file import RecordWarning, finite
from pogm.benchmark.results.records import read_runs, read_trial_file
from pogm.benchmark.runs.runner import RunOptions
from pogm.data.datasets import DomainDataset, is_named_dataset
from pogm.data.datasets.folder import Folder
from pogm.data.tables.samples import is_array_file

SAMPLES = 3  # finished runs of each kind whose time is read
Kind = tuple[str, str]  # dataset and label of a trial


def read_finished(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the content of trial.json of the finished runs in a folder, by trial id; leave out unreadable ones."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob("*/done")):
        try:
            found[path.parent.name] = read_trial_file(path.parent)
        except (OSError, ValueError) as error:
            warnings.warn(f"{path.parent}: run left out ({error})", RecordWarning, stacklevel=2)
    return found


def trial_kind(content: Mapping[str, Any]) -> Kind:
    """Return the dataset and label of a run from its trial.json."""
    dataset = content["trial"]["dataset"]
    return str(dataset.get("title", dataset["name"])), str(content["label"])


def find_planned_dataset(name: str, data: Path | None, *, read_images: bool) -> DomainDataset:
    """Return a dataset for planning; without its images, only the names of subfolders or a metadata file are read."""
    if read_images or is_named_dataset(name):
        return find_dataset(name, data, show_image_progress)
    path, options = locate(name, data)
    if is_array_file(path, options):
        return find_dataset(name, data)
    dataset = Folder.from_path(path, options, show_image_progress, read_images=False)
    where = "in its rows" if dataset.file else "subfolders"
    print_line(f"{name}: {len(dataset.domains)} domains, as many as it has {where} now.")
    return dataset


@dataclass
class RunCounts:
    """Numbers of runs: by row and dataset for the table, by kind for the time."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)  # all runs, by the name of the row
    left: Counter[Kind] = field(default_factory=Counter)  # runs that are not done

    def add(self, row: str, label: str, dataset: str, count: int = 1, done: int = 0) -> None:
        """Count runs of a row on a dataset, some of them done."""
        self.rows.setdefault(row, Counter())[dataset] += count
        self.left[dataset, label] += count - done


def count_trials(trials: Sequence[Trial], finished: Mapping[str, Any]) -> RunCounts:
    """Return the numbers of runs of a list of trials."""
    counts = RunCounts()
    for trial in trials:
        counts.add(trial.label, trial.label, trial.dataset.title, done=trial.id in finished)
    return counts


def show_plan(
    counts: RunCounts,
    folder: Path,
    finished: Mapping[str, Mapping[str, Any]],
    run_options: RunOptions,
    workers: int,
    sample: Iterable[tuple[Trial, int]] = (),
    advice: str = "add --estimate",
) -> dict[str, Any]:
    """Print the numbers of runs by row and dataset, and the time that finished runs of the same kind took.

    Args:
        counts: Numbers of runs.
        folder: Folder of the runs.
        finished: Content of trial.json of the finished runs.
        run_options: Options of the runner.
        workers: Number of processes on a CPU.
        sample: Trials that stand for all, see `pogm.benchmark.plan.sweep.Sweep.sample`, to print GPU hours and disk.
        advice: How to measure a time that is not known.

    Returns:
        The same for --json.
    """
    datasets = list(dict.fromkeys(name for row in counts.rows.values() for name in row))
    width = max(map(len, ["runs", *counts.rows]))
    columns = {name: max(len(name), 5) for name in (*datasets, "all")}
    print_line(f"{'runs':<{width}}  {'  '.join(f'{name:>{size}}' for name, size in columns.items())}")
    for name, row in counts.rows.items():
        numbers = {**{dataset: row[dataset] for dataset in datasets}, "all": row.total()}
        print_line(f"{name:<{width}}  {'  '.join(f'{numbers[one]:>{size}}' for one, size in columns.items())}")
    left = +counts.left
    rows = {name: dict(row) for name, row in counts.rows.items()}
    plan: dict[str, Any] = {"dry_run": True, "folder": folder, "runs": rows, "left": left.total(), "seconds": None}
    if not left:
        print_line("Nothing is left to run.")
        return plan
    plan |= _print_time(left, folder, finished, run_options, workers, advice)
    planned: Counter[Kind] = Counter()
    for trial, count in (sample := list(sample)):
        planned[trial.dataset.title, trial.label] += count
    if sample:
        shares = {kind: left[kind] / count for kind, count in planned.items()}
        plan["reference"] = reference_lines(
            weigh(sample, shares), on_gpu=run_options.engine.device != "cpu", keep_models=run_options.keep_models
        )
        for line in plan["reference"]:
            print_line(line)
    return plan


def _print_time(
    left: Counter[Kind],
    folder: Path,
    finished: Mapping[str, Mapping[str, Any]],
    run_options: RunOptions,
    workers: int,
    advice: str,
) -> dict[str, Any]:
    """Print the time of the runs that are left, as far as finished runs tell it, and return it for --json."""
    seconds = _seconds_by_kind(folder, finished)
    known = {kind: number for kind, number in left.items() if kind in seconds}
    if not known:
        print_line(f"{left.total()} runs to do. Their time is not known. To measure it with this data, {advice}.")
        return {}
    workers = workers if run_options.engine.device in ("auto", "cpu") else 1
    needed = sum(seconds[kind] * number for kind, number in known.items()) / workers
    total = duration(needed)
    missing = left.total() - sum(known.values())
    rest = f" The time of {missing} other runs is not known: {advice}." if missing else ""
    print_line(
        f"{left.total()} runs to do. {sum(known.values())} of them take about {total} on {workers} "
        f"process{'es' * (workers > 1)}, as long as finished runs in {folder}.{rest}"
    )
    return {"seconds": needed, "runs_of_known_time": sum(known.values()), "workers": workers}


def _seconds_by_kind(folder: Path, finished: Mapping[str, Mapping[str, Any]]) -> dict[Kind, float]:
    """Return the median training time of finished runs, by dataset and label, without evaluations.

    Runs that were trained as one share the time.
    """
    chosen: dict[Kind, list[str]] = {}
    for number, content in finished.items():
        alike = chosen.setdefault(trial_kind(content), [])
        if len(alike) < SAMPLES:
            alike.append(number)
    if not chosen:
        return {}
    runs = {run.id: run for run in read_runs(*(folder / number for ids in chosen.values() for number in ids))}
    times: dict[Kind, list[float]] = {}
    for kind, ids in chosen.items():
        for run in (runs[number] for number in ids if number in runs):
            measured = [finite(record.get("seconds_per_step")) for record in run.records]
            sharing = finished[run.id].get("provenance", {}).get("shared_training", 1)
            if known := [seconds for seconds in measured if seconds > 0]:
                times.setdefault(kind, []).append(median(known) * run.trial.get("steps", 0) / sharing)
    return {kind: median(found) for kind, found in times.items()}


def show_estimates(trials: Sequence[Trial], run_options: RunOptions, workers: int) -> dict[str, Any]:
    """Train a few steps of every kind of run; print the time and memory of each kind, and the time of all.

    Args:
        trials: Trials that are left to run.
        run_options: Options of the runner.
        workers: Number of processes on a CPU.

    Returns:
        The same for --json.
    """
    if not trials:
        print_line("Nothing is left to run.")
        return {"estimate": True, "kinds": [], "left": 0, "seconds": 0.0, "workers": workers}
    workers = workers if run_options.engine.torch_device().type == "cpu" else 1
    kinds = estimates(trials, run_options)
    for kind in kinds:
        print_line(
            f"{kind.dataset}  {kind.label}  {kind.runs} runs  {duration(kind.seconds)}  {kind.memory_gb:.1f} GB each"
        )
    start = measure_start()
    seconds = start + sum(kind.seconds for kind in kinds) / workers
    processes = f"{workers} process{'es' * (workers > 1)}"
    print_line(f"{len(trials)} runs, about {duration(seconds)} on {processes}, {duration(start)} of it to start.")
    listed = [
        {"dataset": k.dataset, "label": k.label, "runs": k.runs, "seconds": k.seconds, "memory_gb": k.memory_gb}
        for k in kinds
    ]
    return {"estimate": True, "kinds": listed, "left": len(trials), "seconds": seconds, "workers": workers}
