"""Executors: run many trials in processes or on GPUs of this machine, on a Ray cluster, or as Slurm jobs."""

import math
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pogm._system.cpu import count_cores
from pogm._system.errors import (
    DiskFullError,
    InUseError,
    PogmError,
    StoppedError,
    UsageError,
    is_disk_full,
    unknown_name_error,
)
from pogm._system.terminal import escape_output, message_text, show_warning
from pogm._system.unexpected import EXIT_CODE, report_unexpected
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, SWEEP, TRIAL
from pogm.benchmark.results.records import read_failure
from pogm.benchmark.runs.compile_choice import choose_compile, shape_key
from pogm.benchmark.runs.context import Stop, catch_stop_signals, failure_text, write_failure
from pogm.benchmark.runs.directory import make_folder, write_trial
from pogm.benchmark.runs.runner import RunOptions, run_batch
from pogm.benchmark.runs.state import state_of
from pogm.engine.engine import SMALL_IMAGE_PIXELS, Engine

EXECUTORS = ("local", "ray", "slurm")
ATTEMPTS = 3  # for a trial if its process dies
GIVEN_UP = f"its process died {ATTEMPTS} times (out of memory, or killed)"
BATCH_SIZE = 16  # maximum number of trials in a batch
GPU_PROCESSES = 3  # maximum number of processes that share a GPU
GPU_PROCESS_BYTES = 40 * 2**30  # memory for each of them; an evaluation of small images uses up to 25 GiB
POLL_SECONDS = 0.2  # interval between checks for a stop signal
DRIVER_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}  # sent to all processes of a terminal or Slurm job


@dataclass(frozen=True)
class Outcome:
    """The end of a trial."""

    trial: Trial
    error: str | None = None  # None if it is done, or if its time was over
    ran: bool = True  # False if the outcome was known before: the trial was done, failed or run by another process
    is_cut: bool = False  # True if its time was over; it may have a checkpoint and a model


Execute = Callable[[Sequence[Trial], Path, RunOptions], Iterator[Outcome]]


def executor(
    name: str, workers: int | None = None, address: str | None = None, slurm: Mapping[str, Any] | None = None
) -> Execute:
    """Return an executor by name.

    Args:
        name: One of `EXECUTORS`.
        workers: Number of processes of the local executor; None for the number of cores.
        address: Address of a Ray cluster; None to start Ray on this machine.
        slurm: Options of Slurm jobs, see `pogm.benchmark.runs.slurm_cluster.JobOptions`; None for the defaults.
    """
    if name not in EXECUTORS:
        raise unknown_name_error("an executor", name, EXECUTORS)
    if name == "ray":
        from pogm.benchmark.runs.ray_cluster import run_on_ray  # it imports this file

        return partial(run_on_ray, address=address)
    if address is not None:
        raise UsageError(
            f"Expected --address only with --executor ray; found {address!r} without it. Leave --address out."
        )
    if name == "slurm":
        from pogm.benchmark.runs.slurm_cluster import JobOptions, run_on_slurm  # it imports this file

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

    Finished runs are not run again. Runs of other processes are left to them, and an outcome is reported at once.

    Args:
        trials: All trials of the sweep.
        folder: The directory of the sweep.
        options: Options of the runner.
        execute: The executor; None for the local one.
        retry_failed: Also run trials that failed before.
        with_running: Give the executor also the trials that other processes run, because it waits for them.
    """
    todo = []
    for trial in trials:
        state = state_of(folder / trial.id)
        is_running = state == "running" and with_running
        if state in ("waiting", "interrupted") or is_running or (state == "failed" and retry_failed):
            todo.append(trial)
        elif state == "failed":
            yield Outcome(trial, read_failure(folder / trial.id), ran=False)
        else:
            yield Outcome(trial, ran=False)
    yield from (execute or run_all)(todo, folder, options)


def run_all(
    trials: Sequence[Trial],
    root: Path,
    options: RunOptions,
    workers: int | None = None,
    deadline: float | None = None,
) -> Iterator[Outcome]:
    """Run every trial in ``root/<id>`` on this machine; yield each outcome when it is known.

    On a CPU each trial runs in one of ``workers`` processes, and gives the same bits as alone. On a GPU, new trials
    that differ only in floats, seeds and held-out domains train as one batch, and the batches run one after the other.
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
    slots = list(gpus) * count_gpu_processes(waiting, options.engine) if on_gpu else []
    choose = _CompileChoice(waiting, options, len(slots))
    jobs.reverse()  # the next job is taken from the end
    deaths: Counter[str] = Counter()
    idle: list[_Worker] = []
    busy: dict[Any, _Worker] = {}
    try:
        count = min(len(slots) if on_gpu else workers or count_cores(), len(jobs))
        idle += [_Worker(slots[number] if on_gpu else None) for number in range(count)]
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
                job, outcomes = worker.job, worker.outcomes()
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
                    idle.append(_Worker(worker.gpu))
    finally:
        for worker in busy.values():
            worker.process.terminate()  # the run stops with a checkpoint
        for worker in (*idle, *busy.values()):
            worker.close()


def _take(jobs: list[list[Trial]], root: Path, is_free: Callable[[Trial], bool]) -> list[Trial]:
    """Remove the next job; return its trials that are free.

    If another process has begun a trial of a batch in the meantime, it becomes a job of its own.
    """
    job = [trial for trial in jobs.pop() if is_free(trial)]
    if len(job) == 1 or not any(has_begun(trial, root) for trial in job):
        return job
    jobs.extend([trial] for trial in job if has_begun(trial, root))
    return [trial for trial in job if not has_begun(trial, root)]


def make_jobs(trials: Sequence[Trial], root: Path, options: RunOptions, on_gpu: bool) -> list[list[Trial]]:
    """Return lists of trials that run together: on a GPU new trials that are alike, otherwise single trials.

    Trials with trajectories outside the device memory, and trials that have begun, run alone. The order is that of the
    first trial of each list.
    """
    if not on_gpu or options.engine.trajectories not in ("auto", "device"):
        return [[trial] for trial in trials]
    new = [trial for trial in trials if not has_begun(trial, root)]
    jobs = [*group_alike(new, BATCH_SIZE), *([trial] for trial in trials if has_begun(trial, root))]
    position = {trial.id: number for number, trial in enumerate(trials)}
    return sorted(jobs, key=lambda job: position[job[0].id])


def count_gpu_processes(trials: Sequence[Trial], engine: Engine) -> int:
    """Return the number of processes that share a GPU: several for small images, if its memory allows.

    While one process loads data, compiles or writes models, another one trains.
    """
    if not all(is_small(trial) for trial in trials):
        return 1
    memory = torch.cuda.get_device_properties(engine.torch_device()).total_memory
    return min(max(memory // GPU_PROCESS_BYTES, 1), GPU_PROCESSES)


def is_small(trial: Trial) -> bool:
    """Return whether the inputs of a trial are so small that one run does not keep a GPU busy."""
    return math.prod(trial.dataset.transform(trial.training).shape[-2:]) <= SMALL_IMAGE_PIXELS


class _CompileChoice:
    """Decides for each job of a sweep whether to compile, by the number of runs that can use the compiled code."""

    def __init__(self, waiting: Sequence[Trial], options: RunOptions, processes: int):
        self.given, self.processes = options, processes
        decides = options.engine.compile == "auto" and not options.engine.deterministic and options.engine.compiles()
        self.left = Counter(map(shape_key, waiting)) if decides else None  # runs that are not started, by shape

    def options(self, job: Sequence[Trial], root: Path) -> RunOptions:
        """Return the options of a job; a run that has begun keeps its first choice."""
        if self.left is None or has_begun(job[0], root):
            return self.given
        key = shape_key(job[0])
        runs = max(math.ceil(self.left[key] / self.processes), len(job))
        self.left[key] -= len(job)
        return replace(self.given, engine=choose_compile(self.given.engine, job[0], runs))


def has_begun(trial: Trial, root: Path) -> bool:
    """Return whether there may be a checkpoint to resume from, which a batch cannot do."""
    return (root / trial.id / TRIAL).exists()


def group_alike(trials: Sequence[Trial], most: int) -> list[list[Trial]]:
    """Group trials that can train as one batch, up to ``most`` in a group; keep the order of the first ones.

    Trials on large images stay alone: one of them keeps a GPU busy, and several would not fit into its memory.
    """
    alike: dict[str, list[list[Trial]]] = {}
    groups: list[list[Trial]] = []
    for trial in trials:
        limit = most if is_small(trial) else 1
        found = alike.setdefault(f"{trial.schedule} {shape_key(trial)}", [])
        if not found or len(found[-1]) == limit:
            found.append([])
            groups.append(found[-1])
        found[-1].append(trial)
    return groups


class _Worker:
    """A process that runs jobs, one after the other."""

    job: list[Trial]
    deadline: float | None = None  # of the job
    missed_deadline = False  # True after the job was stopped for this reason

    def __init__(self, gpu: str | None = None) -> None:
        self.gpu = gpu
        environment = dict(os.environ) if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        context = _process_context()
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, environment), daemon=True)
        # Ctrl-C sends SIGINT to every process of the terminal, and its end SIGHUP; Slurm may send SIGUSR1 to every
        # process of a job. Workers start with all of them blocked: this process stops them. The resource tracker is
        # started first, because its start would unblock them.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVER_SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child.close()  # then the pipe reports the end of the process

    def start_job(self, job: list[Trial], root: Path, options: RunOptions) -> None:
        """Send a job to the process."""
        self.job = job
        with suppress(ConnectionError):  # the process died; `outcomes` reports it
            self.pipe.send((job, root, options))

    def stop_if_late(self, now: float) -> None:
        """End the process, with a checkpoint of the job, if its time is over."""
        if self.deadline is not None and now >= self.deadline and not self.missed_deadline:
            self.process.terminate()
            self.missed_deadline = True

    def outcomes(self) -> list[Outcome] | None:
        """Receive the outcomes of the job; None if the process died.

        Raises:
            DiskFullError: If the disk is full.
        """
        try:
            errors = self.pipe.recv()
        except (EOFError, ConnectionError):
            return None
        if isinstance(errors, DiskFullError):
            raise errors
        return [Outcome(trial, error) for trial, error in zip(self.job, errors, strict=True)]

    def close(self) -> None:
        """End the process, idle or terminated, and wait for it."""
        self.pipe.close()  # an idle process reads the end of the pipe and exits
        self.process.join()
        self.process.close()


def _process_context() -> ForkServerContext | SpawnContext:
    """Return the context that starts workers: a fork server, which imports torch once for all of them.

    The server has imported modules and done nothing else, so no thread of torch can hold a lock when it forks.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # most runs import torch._dynamo, in 2 s
    return context


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    """Run jobs until the pipe is closed, this process gets a stop signal, or the parent process dies.

    All three end the process by a normal exit. An exit by a signal would skip the release of semaphores, such as those
    of torch's compiler, and the resource tracker would report them as leaked.

    Args:
        pipe: Connection for jobs and outcomes.
        environment: Environment variables of the parent; those of the fork server may be older.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, DRIVER_SIGNALS)
    escape_output()
    warnings.showwarning = show_warning
    signal.signal(signal.SIGTERM, _exit)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        while True:
            job = pipe.recv()
            try:
                pipe.send(run_job(*job))
            except DiskFullError as error:
                pipe.send(error)
    except (EOFError, ConnectionError, StoppedError):
        return
    except Exception as error:  # such as a job that cannot be read, because this process cannot import its classes
        report_unexpected(error, "the work of a process of a sweep")
        sys.exit(EXIT_CODE)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _follow_parent() -> None:
    """Stop this process, with a checkpoint, when its parent dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def run_job(job: list[Trial], root: Path, options: RunOptions) -> list[str | None]:
    """Run the trials of a job as one batch; return the error of each as text.

    A trial that another process runs has no error here: that process reports it.

    Raises:
        StoppedError: If a signal stopped the job.
        DiskFullError: If the disk is full.
    """
    try:
        errors = run_batch(job, [root / trial.id for trial in job], options)
    except StoppedError:
        raise
    except InUseError:
        return [None] * len(job)
    except Exception as error:
        if is_disk_full(error):
            raise DiskFullError(str(error)) from error
        for trial in job:
            if not has_begun(trial, root):  # the reason is missing data, for example
                note_failure(trial, root, error)
        return [failure_text(error)] * len(job)
    return [None if error is None or isinstance(error, InUseError) else message_text(error) for error in errors]


def note_failure(trial: Trial, root: Path, error: Exception) -> None:
    """Write the reason of a failure that the run itself could not write to its directory."""
    folder = root / trial.id
    with suppress(PogmError, OSError):
        make_folder(folder)
        if not has_begun(trial, root):
            write_trial(folder, trial, {})
        write_failure(folder, error)


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
