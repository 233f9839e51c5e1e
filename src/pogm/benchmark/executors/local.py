"""The local executor, which runs many trials in processes or on GPUs of this machine."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pogm._system.cpu import count_cores
from pogm._system.errors import DiskFullError, PogmError
from pogm.benchmark.executors.jobs import CompileChoice, count_gpu_processes, make_jobs, share_compile_threads, take_job
from pogm.benchmark.executors.outcomes import ATTEMPTS, GIVEN_UP, Outcome, split_done, stop_sweep
from pogm.benchmark.executors.worker import Worker, note_failure
from pogm.benchmark.plan.shared_training import share_training
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import Stop, catch_stop_signals
from pogm.benchmark.runs.options import RunOptions

POLL_SECONDS = 0.2  # interval between checks for a stop signal


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
    choose = CompileChoice(waiting, options, len(gpus), sharing)
    slots = list(gpus) * sharing if on_gpu else [None] * (workers or count_cores())
    slots = slots[: len(jobs)]
    threads = share_compile_threads(len(slots)) if on_gpu else None
    with closing(_Workers(jobs, root, [Worker(gpu, threads) for gpu in slots], deadline)) as pool:
        while pool.jobs or pool.busy:
            pool.start_jobs(is_free, choose)
            ready = wait(list(pool.busy), timeout=POLL_SECONDS)
            if stop.signal is not None:
                raise stop.error(root, many=True)
            for worker in pool.busy.values():
                worker.stop_if_late(time.monotonic())
            for pipe in ready:
                yield from pool.end_job(pipe)


class _Workers:
    """Worker processes, and the jobs that wait for them.

    If the process of a job dies, its trials become jobs of their own, which resume from the last checkpoints.

    Args:
        jobs: The jobs, in the order in which they start.
        root: Folder of the run directories.
        workers: One worker for each job that may run at the same time.
        deadline: Value of ``time.monotonic()`` at which all jobs end, if any.
    """

    def __init__(self, jobs: list[list[Trial]], root: Path, workers: list[Worker], deadline: float | None):
        self.jobs = jobs[::-1]  # the next job is taken from the end
        self.root, self.deadline, self.count = root, deadline, len(workers)
        self.idle = workers
        self.busy: dict[Any, Worker] = {}  # by the pipe on which the worker answers
        self.deaths: Counter[str] = Counter()  # of the processes of each trial

    def start_jobs(self, is_free: Callable[[Trial], bool], choose: CompileChoice) -> None:
        """Give jobs to all idle workers."""
        while self.jobs and self.idle:
            job = take_job(self.jobs, self.root, is_free)
            if not job:
                continue
            worker = self.idle.pop()
            self.busy[worker.pipe] = worker
            if self.deadline is not None:
                now, in_a_row = time.monotonic(), math.ceil((len(self.jobs) + 1) / self.count)
                worker.deadline = now + (self.deadline - now) / in_a_row
            worker.start_job(job, self.root, choose.options(job, self.root))

    def end_job(self, pipe: Any) -> Iterator[Outcome]:
        """Yield the outcomes of a worker that has ended its job, or that died; replace a worker that died."""
        worker = self.busy[pipe]
        errors = worker.receive_errors()
        del self.busy[pipe]
        outcomes = None if errors is None else [Outcome(*end) for end in zip(worker.job, errors, strict=True)]
        if outcomes is not None and not worker.missed_deadline:
            self.idle.append(worker)
            yield from outcomes
            return
        worker.close()
        if worker.missed_deadline:
            yield from outcomes or [Outcome(trial, is_cut=True) for trial in worker.job]
        else:
            yield from self._repeat(worker.job)
        if self.jobs:
            self.idle.append(Worker(worker.gpu, worker.compile_threads))

    def _repeat(self, job: list[Trial]) -> Iterator[Outcome]:
        """Make each trial of a job a job of its own; yield the outcomes of those that had all their attempts.

        After the first death, trials that share their training stay together.
        """
        self.deaths.update(trial.id for trial in job)
        for trial in job:
            if self.deaths[trial.id] >= ATTEMPTS:
                note_failure(trial, self.root, PogmError(GIVEN_UP))
                yield Outcome(trial, GIVEN_UP)
        left = [trial for trial in job if self.deaths[trial.id] < ATTEMPTS]
        is_first = all(self.deaths[trial.id] == 1 for trial in left)
        self.jobs += share_training(left) if is_first else [[trial] for trial in left]

    def close(self) -> None:
        """End all processes; runs that are not finished stop with a checkpoint."""
        for worker in self.busy.values():
            worker.process.terminate()
        for worker in (*self.idle, *self.busy.values()):
            worker.close()
