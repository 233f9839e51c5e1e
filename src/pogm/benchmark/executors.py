"""Carrying out many trials: here, in as many processes as there are cores."""

import multiprocessing
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pogm.benchmark.run import Settings, run
from pogm.benchmark.trial import Trial
from pogm.core.errors import PogmError

ATTEMPTS = 3  # for a trial whose process died


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    trial: Trial
    error: str | None = None  # None if it is done


def run_all(trials: Sequence[Trial], root: Path, settings: Settings, workers: int | None = None) -> Iterator[Outcome]:
    """Run every trial in ``root/<its id>``, giving each outcome as it comes. Finished trials are not run again.

    A trial whose process dies is tried again, from its last checkpoint; the others do not notice.
    """
    waiting = []
    for trial in trials:
        if (root / trial.id / "done").exists():
            yield Outcome(trial)
        else:
            waiting.append(trial)
    waiting.reverse()  # the first is taken from the end
    deaths: Counter[str] = Counter()
    idle: list[_Worker] = []
    busy: dict[Any, _Worker] = {}
    try:
        idle += [_Worker() for _ in range(min(workers or cores(), len(waiting)))]
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop()
                busy[worker.pipe] = worker
                worker.begin(waiting.pop(), root, settings)
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)
                trial, outcome = worker.trial, worker.outcome()
                idle.append(worker if outcome else worker.replaced())
                if outcome is None:
                    deaths[trial.id] += 1
                    if deaths[trial.id] < ATTEMPTS:
                        waiting.append(trial)
                        continue
                    outcome = Outcome(trial, f"its process died {ATTEMPTS} times (out of memory, or killed)")
                yield outcome
    finally:
        crew = [*idle, *busy.values()]
        for worker in crew:
            worker.process.terminate()  # one that is in a run leaves a checkpoint
        for worker in crew:
            worker.close()


class _Worker:
    """A process that runs trials, one after the other."""

    trial: Trial

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

    def begin(self, trial: Trial, root: Path, settings: Settings) -> None:
        """Hand it a trial."""
        self.trial = trial
        with suppress(ConnectionError):  # it died in the meantime, which `outcome` will find
            self.pipe.send((trial, root / trial.id, settings))

    def outcome(self) -> Outcome | None:
        """What became of the trial; None if the process died over it."""
        try:
            return Outcome(self.trial, self.pipe.recv())
        except (EOFError, ConnectionError):
            return None

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
    """Run trials until nobody asks for more."""
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(_work(*pipe.recv()))


def _work(trial: Trial, folder: Path, settings: Settings) -> str | None:
    """Run one trial; what went wrong, in words."""
    try:
        run(trial, folder, settings)
    except PogmError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
