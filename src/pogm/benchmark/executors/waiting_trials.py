"""Run the trials of a sweep that are waiting or interrupted, by an executor that is chosen by its name."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown_name_error
from pogm.benchmark.executors.local import run_all
from pogm.benchmark.executors.outcomes import Execute, Outcome
from pogm.benchmark.executors.ray_cluster import run_on_ray
from pogm.benchmark.executors.slurm_cluster import JobOptions, run_on_slurm
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import read_failure
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.state import state_of

EXECUTORS = ("local", "ray", "slurm")


class RunningElsewhereWarning(UserWarning):
    """Other processes still run some of the trials, so that their results are missing."""


def executor(
    name: str, workers: int | None = None, address: str | None = None, slurm: Mapping[str, Any] | None = None
) -> Execute:
    """Return an executor by name.

    Args:
        name: One of `EXECUTORS`.
        workers: Number of processes of the local executor; None for the number of cores.
        address: Address of a Ray cluster; None to start Ray on this machine.
        slurm: Options of Slurm jobs, see `pogm.benchmark.executors.slurm_cluster.JobOptions`; None for the defaults.
    """
    if name not in EXECUTORS:
        raise unknown_name_error("an executor", name, EXECUTORS)
    if name == "ray":
        return partial(run_on_ray, address=address)
    if address is not None:
        raise UsageError(
            f"Expected --address only with --executor ray; found {address!r} without it. Leave --address out."
        )
    if name == "slurm":
        return partial(run_on_slurm, jobs=JobOptions(**(slurm or {})))
    return partial(run_all, workers=workers)


def run_waiting_trials(
    trials: Sequence[Trial],
    folder: Path,
    options: RunOptions,
    execute: Execute | None = None,
    retry_failed: bool = False,
    with_running: bool = False,
) -> Iterator[Outcome]:
    """Run the trials of a sweep that are waiting or interrupted; yield an outcome for every trial.

    Finished runs are not run again. Runs of other processes are left to them. Those that are interrupted when all
    others have ended are run then: the workers of a driver that was killed need some time to save and exit. A
    `RunningElsewhereWarning` counts those that still run.

    Args:
        trials: All trials of the sweep.
        folder: The directory of the sweep.
        options: Options of the runner.
        execute: The executor; None for the local one.
        retry_failed: Also run trials that failed before.
        with_running: Give the executor also the trials that other processes run, because it waits for them.

    Raises:
        UsageError: If the directory cannot be written to.
    """
    todo, elsewhere = [], []
    for trial in trials:
        state = state_of(folder / trial.id)
        is_running = state == "running" and with_running
        if state in ("waiting", "interrupted") or is_running or (state == "failed" and retry_failed):
            todo.append(trial)
        elif state == "running":
            elsewhere.append(trial)
        else:
            yield _known_outcome(trial, folder)
    if todo:
        make_folder(folder)  # a folder that cannot be written to is one error, and not one of every run
    run_trials = execute or run_all
    for outcome in run_trials(todo, folder, options):
        is_open = outcome.error is None and not outcome.is_cut
        if is_open and state_of(folder / outcome.trial.id) in ("running", "interrupted"):
            elsewhere.append(outcome.trial)  # another process had it when its turn came
        else:
            yield outcome
    stopped = [trial for trial in elsewhere if state_of(folder / trial.id) in ("waiting", "interrupted")]
    yield from run_trials(stopped, folder, options) if stopped else ()
    yield from (_known_outcome(trial, folder) for trial in elsewhere if trial not in stopped)
    if running := sum(state_of(folder / trial.id) == "running" for trial in elsewhere):
        text = (
            f"Expected all {len(trials)} runs in {folder} to have ended; found {running} that other processes run. "
            "Repeat the command when they have ended."
        )
        warnings.warn(text, RunningElsewhereWarning, stacklevel=2)


def _known_outcome(trial: Trial, folder: Path) -> Outcome:
    """Return the outcome of a trial that this process did not run."""
    return Outcome(trial, read_failure(folder / trial.id) if state_of(folder / trial.id) == "failed" else None, False)
