"""Carrying out many trials here: in as many processes as there are cores, or as batches on a GPU."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pogm._system.errors import InUseError, PogmError, StoppedError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.batch_runner import groups_of, run_together
from pogm.benchmark.runs.context import Stop, note_failure, stoppable
from pogm.benchmark.runs.directory import TRIAL, describe, make_folder
from pogm.benchmark.runs.runner import Settings, run

ATTEMPTS = 3  # for a trial whose process died
GIVEN_UP = f"its process died {ATTEMPTS} times (out of memory, or killed)"
TOGETHER = 16  # trials in a batch, at most
POLL_SECONDS = 0.2  # between looks at whether a signal came


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    trial: Trial
    error: str | None = None  # None if it is done


def run_all(trials: Sequence[Trial], root: Path, settings: Settings, workers: int | None = None) -> Iterator[Outcome]:
    """Run every trial in ``root/<its id>``, giving each outcome as it comes. Finished trials are not run again.

    On a CPU a trial has a process to itself, and gives the bits that it would give alone. On a GPU new trials that
    differ in floats, seeds and held-out domains train as one batch, and the batches take turns. A trial whose process
    dies is tried again, alone, from its last checkpoint; the others do not notice.
    """
    done, waiting = told_apart(trials, root)
    yield from map(Outcome, done)
    with stoppable() as stopped:
        yield from _carried_out(waiting, root, settings, workers, stopped)


def told_apart(trials: Sequence[Trial], root: Path) -> tuple[list[Trial], list[Trial]]:
    """Those that are done, and the others."""
    done = [trial for trial in trials if (root / trial.id / "done").exists()]
    known = {trial.id for trial in done}
    return done, [trial for trial in trials if trial.id not in known]


def _carried_out(
    waiting: Sequence[Trial], root: Path, settings: Settings, workers: int | None, stopped: Stop
) -> Iterator[Outcome]:
    on_gpu = settings.engine.torch_device().type == "cuda"
    jobs = batches(waiting, root) if on_gpu and may_share(settings) else [[trial] for trial in waiting]
    jobs.reverse()  # the first is taken from the end
    deaths: Counter[str] = Counter()
    idle: list[_Worker] = []
    busy: dict[Any, _Worker] = {}
    try:
        idle += [_Worker() for _ in range(min(1 if on_gpu else workers or cores(), len(jobs)))]
        while jobs or busy:
            while jobs and idle:
                worker = idle.pop()
                busy[worker.pipe] = worker
                worker.begin(jobs.pop(), root, settings)
            ended = wait(list(busy), timeout=POLL_SECONDS)
            if stopped.signal is not None:
                raise stopped.error(root, many=True)
            for pipe in ended:
                worker = busy.pop(pipe)
                job, outcomes = worker.job, worker.outcomes()
                idle.append(worker.replaced() if outcomes is None else worker)
                if outcomes is not None:
                    yield from outcomes
                    continue
                for trial in job:
                    deaths[trial.id] += 1
                    if deaths[trial.id] < ATTEMPTS:
                        jobs.append([trial])
                    else:
                        yield Outcome(trial, GIVEN_UP)
    finally:
        crew = [*idle, *busy.values()]
        for worker in crew:
            worker.process.terminate()  # one that is in a run leaves a checkpoint
        for worker in crew:
            worker.close()


def may_share(settings: Settings) -> bool:
    """Whether like trials may train as one batch: trajectories elsewhere have no room for it."""
    return settings.engine.trajectories in ("auto", "device")


def batches(trials: Sequence[Trial], root: Path) -> list[list[Trial]]:
    """New trials with their like; those that were begun go on alone."""
    new, begun = list[Trial](), list[Trial]()
    for trial in trials:
        (begun if is_begun(trial, root) else new).append(trial)
    return [*groups_of(new, TOGETHER), *([trial] for trial in begun)]


def is_begun(trial: Trial, root: Path) -> bool:
    """Whether there may be something to go on from, which a batch does not look for."""
    return (root / trial.id / TRIAL).exists()


class _Worker:
    """A process that runs trials, one after the other."""

    job: list[Trial]

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half-alive
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # A Ctrl-C goes to every process of the terminal. The workers never see it: it is for us to stop them.
        resource_tracker.ensure_running()  # its first start would unblock the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()  # so that the end of the process is the end of the pipe

    def begin(self, job: list[Trial], root: Path, settings: Settings) -> None:
        """Hand it a trial, or several to train as one."""
        self.job = job
        with suppress(ConnectionError):  # it died in the meantime, which `outcomes` will find
            self.pipe.send((job, root, settings))

    def outcomes(self) -> list[Outcome] | None:
        """What became of the trials; None if the process died over them."""
        try:
            errors = self.pipe.recv()
        except (EOFError, ConnectionError):
            return None
        return [Outcome(trial, error) for trial, error in zip(self.job, errors, strict=True)]

    def replaced(self) -> "_Worker":
        """A new one in place of one that died."""
        self.close()
        return _Worker()

    def close(self) -> None:
        """Wait for the process to end."""
        self.pipe.close()
        self.process.join()
        self.process.close()


def _serve(pipe: Connection) -> None:
    """Run trials until nobody asks for more, or this process is asked to end, or whoever asked is gone."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError, StoppedError):
        while True:
            pipe.send(work(*pipe.recv()))


def _follow_parent() -> None:
    """Stop this process, with a checkpoint, when the one that started it dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def work(job: list[Trial], root: Path, settings: Settings) -> list[str | None]:
    """Run one trial, or several as one; what went wrong with each, in words. One that is stopped has not gone wrong."""
    try:
        if len(job) > 1:
            return run_together(job, root, settings)
        run(job[0], root / job[0].id, settings)
    except StoppedError:
        raise
    except InUseError:
        return [None] * len(job)  # another driver's, who will see to it
    except Exception as error:
        for trial in job:
            _note(trial, root / trial.id, error)
        return [str(error) if isinstance(error, PogmError) else traceback.format_exc()] * len(job)
    return [None]


def _note(trial: Trial, folder: Path, error: Exception) -> None:
    """Leave the reason where a run failed before it began: its data are not there, its network does not fit."""
    if not (folder / TRIAL).exists():
        with suppress(PogmError, OSError):
            make_folder(folder)
            describe(folder, trial, {})
            note_failure(folder, error)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
