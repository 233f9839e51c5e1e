"""Executors: run many trials in processes or on GPUs of this machine, on a Ray cluster, or as Slurm jobs."""

import math
import shlex
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from pogm._system.cpu import count_cores
from pogm._system.errors import DiskFullError, PogmError, UsageError, unknown_name_error
from pogm.benchmark.costs.compile_choice import choose_compile, shape_key
from pogm.benchmark.executors.worker import Worker, has_begun, note_failure
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, SWEEP
from pogm.benchmark.results.records import read_failure
from pogm.benchmark.runs.context import Stop, catch_stop_signals
from pogm.benchmark.runs.directory import make_folder, newest_checkpoint, read_provenance
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.state import state_of
from pogm.engine.engine import SMALL_IMAGE_PIXELS, Engine

EXECUTORS = ("local", "ray", "slurm")
ATTEMPTS = 3  # for a trial if its process dies
GIVEN_UP = f"its process died {ATTEMPTS} times (out of memory, or killed)"
BATCH_SIZE = 16  # maximum number of trials in a batch
GPU_PROCESSES = 5  # maximum number of processes that share a GPU
GPU_PROCESS_BYTES = 27 * 2**30  # memory for each of them; an evaluation of small images uses up to 25 GiB
COMPILE_THREADS = 32  # maximum number of kernels that a process compiles at once, as in torch
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
    choose = _CompileChoice(waiting, options, len(gpus), sharing)
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
                job = _take(jobs, root, is_free)
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


def _take(jobs: list[list[Trial]], root: Path, is_free: Callable[[Trial], bool]) -> list[Trial]:
    """Remove the next job; return its trials that are free.

    Trials of a batch that another process has trained in the meantime become other jobs.
    """
    job = [trial for trial in jobs.pop() if is_free(trial)]
    if len(job) <= 1:
        return job
    same, *others = by_progress(job, root)
    jobs.extend(others)
    return same


def make_jobs(trials: Sequence[Trial], root: Path, options: RunOptions, on_gpu: bool) -> list[list[Trial]]:
    """Return lists of trials that run together: on a GPU trials that are alike and at one step, otherwise single ones.

    Trials with trajectories outside the device memory run alone. The order is that of the first trial of each list.
    """
    if not on_gpu or options.engine.trajectories not in ("auto", "device"):
        return [[trial] for trial in trials]
    mixes = options.engine.mixes_batch_sizes()
    jobs = [job for same in by_progress(trials, root) for job in group_alike(same, BATCH_SIZE, mixes)]
    position = {trial.id: number for number, trial in enumerate(trials)}
    return sorted(jobs, key=lambda job: position[job[0].id])


def by_progress(trials: Sequence[Trial], root: Path) -> list[list[Trial]]:
    """Divide trials into lists that can resume together: at the same checkpoint, or none, and all compiled or not."""
    found: dict[tuple[str, bool | None], list[Trial]] = {}
    for trial in trials:
        folder = root / trial.id
        step = newest_checkpoint(folder)
        found.setdefault((step, read_provenance("compiled", folder) if step else None), []).append(trial)
    return list(found.values())


def count_gpu_processes(trials: Sequence[Trial], engine: Engine) -> int:
    """Return the number of processes that share a GPU: several for small images, if memory and CPU cores allow it.

    While one process loads data, compiles or writes models, another one trains.
    """
    if not all(is_small(trial) for trial in trials):
        return 1
    memory = torch.cuda.get_device_properties(engine.torch_device()).total_memory
    return max(min(memory // GPU_PROCESS_BYTES, count_cores() // 2, GPU_PROCESSES), 1)


def share_compile_threads(processes: int) -> int:
    """Return the number of kernels that each process compiles at once, since all processes may compile."""
    return min(max(count_cores() // max(processes, 1), 1), COMPILE_THREADS)


def is_small(trial: Trial) -> bool:
    """Return whether the inputs of a trial are so small that one run does not keep a GPU busy."""
    return math.prod(trial.dataset.transform(trial.training).shape[-2:]) <= SMALL_IMAGE_PIXELS


class _CompileChoice:
    """Decides for each job of a sweep whether to compile, by the number of runs that can use the compiled code.

    Code is compiled for all minibatch sizes if the sweep has several of them.
    """

    def __init__(self, waiting: Sequence[Trial], options: RunOptions, gpus: int, sharing: int):
        self.given, self.processes, self.sharing = options, gpus * sharing, sharing
        decides = options.engine.compile == "auto" and not options.engine.deterministic and options.engine.compiles()
        self.left: Counter[str] | None = None  # runs that are not started, by what their compiled code depends on
        self.sizes: dict[str, set[int]] = {}  # their minibatch sizes
        if decides:
            self.left = Counter()
            for trial in waiting:
                key = shape_key(trial, with_batch_size=False)
                self.left[key] += 1
                self.sizes.setdefault(key, set()).add(trial.training.batch_size)

    def options(self, job: Sequence[Trial], root: Path) -> RunOptions:
        """Return the options of a job; a run that has begun keeps its first choice."""
        if self.left is None or has_begun(job[0], root):
            return self.given
        key = shape_key(job[0], with_batch_size=False)
        runs = max(math.ceil(self.left[key] / self.processes), len(job))
        self.left[key] -= len(job)
        engine = choose_compile(self.given.engine, job[0], runs, self.sharing, len(self.sizes[key]))
        return replace(self.given, engine=engine)


def group_alike(trials: Sequence[Trial], most: int, mixes_batch_sizes: bool = False) -> list[list[Trial]]:
    """Group trials that can train as one batch, up to ``most`` in a group; keep the order of the first ones.

    Trials on large images stay alone: one of them keeps a GPU busy, and several would not fit into its memory.

    Args:
        trials: The trials.
        most: Maximum number of trials in a group.
        mixes_batch_sizes: Trials of a group may have different minibatch sizes.
    """
    alike: dict[str, list[list[Trial]]] = {}
    groups: list[list[Trial]] = []
    for trial in trials:
        limit = most if is_small(trial) else 1
        found = alike.setdefault(f"{trial.schedule} {shape_key(trial, not mixes_batch_sizes)}", [])
        if not found or len(found[-1]) == limit:
            found.append([])
            groups.append(found[-1])
        found[-1].append(trial)
    return groups


def stop_sweep(trials: Sequence[Trial], root: Path, reason: DiskFullError) -> DiskFullError:
    """Return the error that ends a sweep on a full disk: the space that the trials need, and how to continue."""
    _, left = split_done(trials, root)
    sizes = [_count_bytes(root / trial.id) for trial in trials]
    used = sum(_count_bytes(root / trial.id) for trial in left)
    needed = max(max(sizes) * len(left) - used, 0)
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
