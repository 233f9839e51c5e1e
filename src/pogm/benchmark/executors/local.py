"""The local executor, which runs many trials in processes or on GPUs of this machine, and the choice of an executor."""

import math
import shlex
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pogm._system.cpu import count_cores
from pogm._system.errors import DiskFullError, PogmError, UsageError, unknown_name_error
from pogm.benchmark.executors.jobs import CompileChoice, count_gpu_processes, make_jobs, share_compile_threads, take_job
from pogm.benchmark.executors.worker import Worker, note_failure
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, SWEEP
from pogm.benchmark.results.records import read_failure
from pogm.benchmark.runs.context import Stop, catch_stop_signals
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.state import state_of

EXECUTORS = ("local", "ray", "slurm")
ATTEMPTS = 3  # for a trial if its process dies
GIVEN_UP = f"its process died {ATTEMPTS} times (out of memory, or killed)"
POLL_SECONDS = 0.2  # interval between checks for a stop signal


@dataclass(frozen=True)
class Outcome:
    """The end of a trial."""

    trial: Trial
    error: str | None = None  # None if it is done, or if its time was over
    ran: bool = True  # False if the outcome was known before: the trial was done, failed or run by another process
    is_cut: bool = False  # True if its time was over; it may have a checkpoint and a model


class RunningElsewhereWarning(UserWarning):
    """Other processes still run some of the trials, so that their results are missing."""


Execute = Callable[[Sequence[Trial], Path, RunOptions], Iterator[Outcome]]


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
        from pogm.benchmark.executors.ray_cluster import run_on_ray  # it imports this file

        return partial(run_on_ray, address=address)
    if address is not None:
        raise UsageError(
            f"Expected --address only with --executor ray; found {address!r} without it. Leave --address out."
        )
    if name == "slurm":
        from pogm.benchmark.executors.slurm_cluster import JobOptions, run_on_slurm  # it imports this file

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


def run_all(
    trials: Sequence[Trial],
    root: Path,
    options: RunOptions,
    workers: int | None = None,
    deadline: float | None = None,
) -> Iterator[Outcome]:
    """Run every trial in ``root/<id>`` on this machine; yield each outcome when it is known.

    On a CPU each trial runs in one of ``workers`` processes, and gives the same bits as alone. On a GPU, trials that
    differ only in floats, seeds, held-out domains and minibatch sizes train as one batch, and the batches run one after
    the other or, for small images, in several processes.
    If the process of a trial dies, the trial is resumed alone from its last checkpoint. Finished trials are not run
    again.

    Args:
        trials: The trials.
        root: Folder of the run directories.
        options: Options of the runner.
        workers: Number of processes on a CPU; None for one per core.
        deadline: Value of ``time.monotonic()`` at which all trials end. Each one gets the same share of the time that
            is left when it starts. It is stopped at the end of its share, with a checkpoint.
    """
    done, waiting = split_done(trials, root)
    yield from (Outcome(trial, ran=False) for trial in done)
    with catch_stop_signals() as stop:
        try:
            yield from run_in_workers(waiting, root, options, workers, stop, deadline)
        except DiskFullError as error:
            raise stop_sweep(trials, root, error) from error


def split_done(trials: Sequence[Trial], root: Path) -> tuple[list[Trial], list[Trial]]:
    """Split trials into those that are done and the others."""
    done = [trial for trial in trials if (root / trial.id / DONE).exists()]
    ids = {trial.id for trial in done}
    return done, [trial for trial in trials if trial.id not in ids]


def run_in_workers(
    waiting: Sequence[Trial],
    root: Path,
    options: RunOptions,
    workers: int | None,
    stop: Stop,
    deadline: float | None = None,
    is_free: Callable[[Trial], bool] = lambda trial: True,
    gpus: Sequence[str | None] = (None,),
) -> Iterator[Outcome]:
    """Run trials in processes of this machine, like `run_all`, until all have ended or a stop signal was received.

    Args:
        waiting: The trials, none of them done.
        root: Folder of the run directories.
        options: Options of the runner.
        workers: Number of processes on a CPU; None for one per core.
        stop: The stop signal that this process received, if any.
        deadline: Value of ``time.monotonic()`` at which all trials end.
        is_free: Called when a process is about to run a trial; if False, the trial is left out, without an outcome.
        gpus: GPUs to use, as values of CUDA_VISIBLE_DEVICES; None for the device of the options.

    Raises:
        StoppedError: After a stop signal; the running trials have checkpoints.
        DiskFullError: If the disk is full.
    """
    on_gpu = options.engine.torch_device().type == "cuda"
    jobs = make_jobs(waiting, root, options, on_gpu)
    sharing = min(count_gpu_processes(waiting, options.engine), math.ceil(len(jobs) / len(gpus))) if on_gpu else 1
    slots = list(gpus) * sharing if on_gpu else []
    choose = CompileChoice(waiting, options, len(gpus), sharing)
    jobs.reverse()  # the next job is taken from the end
    deaths: Counter[str] = Counter()
    idle: list[Worker] = []
    busy: dict[Any, Worker] = {}
    try:
        count = min(len(slots) if on_gpu else workers or count_cores(), len(jobs))
        threads = share_compile_threads(count) if on_gpu else None
        idle += [Worker(slots[number] if on_gpu else None, threads) for number in range(count)]
        while jobs or busy:
            while jobs and idle:
                job = take_job(jobs, root, is_free)
                if not job:
                    continue
                worker = idle.pop()
                busy[worker.pipe] = worker
                if deadline is not None:
                    now, in_a_row = time.monotonic(), math.ceil((len(jobs) + 1) / count)
                    worker.deadline = now + (deadline - now) / in_a_row
                worker.start_job(job, root, choose.options(job, root))
            ready = wait(list(busy), timeout=POLL_SECONDS)
            if stop.signal is not None:
                raise stop.error(root, many=True)
            for worker in busy.values():
                worker.stop_if_late(time.monotonic())
            for pipe in ready:
                worker = busy[pipe]
                job, errors = worker.job, worker.receive_errors()
                outcomes = None if errors is None else [Outcome(*end) for end in zip(job, errors, strict=True)]
                del busy[pipe]
                if outcomes is not None and not worker.missed_deadline:
                    idle.append(worker)
                    yield from outcomes
                    continue
                worker.close()
                if worker.missed_deadline:
                    yield from outcomes or [Outcome(trial, is_cut=True) for trial in job]
                else:
                    for trial in job:
                        deaths[trial.id] += 1
                        if deaths[trial.id] < ATTEMPTS:
                            jobs.append([trial])
                        else:
                            note_failure(trial, root, PogmError(GIVEN_UP))
                            yield Outcome(trial, GIVEN_UP)
                if jobs:
                    idle.append(Worker(worker.gpu, worker.compile_threads))
    finally:
        for worker in busy.values():
            worker.process.terminate()  # the run stops with a checkpoint
        for worker in (*idle, *busy.values()):
            worker.close()


def stop_sweep(trials: Sequence[Trial], root: Path, reason: DiskFullError) -> DiskFullError:
    """Return the error that ends a sweep on a full disk: the space that the trials need, and how to continue."""
    done, left = split_done(trials, root)  # running trials have checkpoints, and are larger
    needed = max(_count_bytes(root / trial.id) for trial in done or trials) * len(left)
    command = f"pogm resume {shlex.quote(str(root))}" if (root / SWEEP).exists() else "the same command"
    return DiskFullError(
        f"Expected about {needed / 2**20:.1f} MiB for {len(left)} runs that are left in {root}; found "
        f"{shutil.disk_usage(root).free / 2**20:.1f} MiB free. {reason} The runs are interrupted. Continue with: "
        f"{command}"
    )


def _count_bytes(folder: Path) -> int:
    """Return the size of all files in a run directory, which other processes may change."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
