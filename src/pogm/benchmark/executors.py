"""Carrying out many trials: here, in as many processes as there are cores."""

import json
import multiprocessing
import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from pogm.benchmark.run import Settings, run
from pogm.benchmark.trial import Trial
from pogm.core.errors import PogmError, StoppedError
from pogm.core.files import write_whole

ATTEMPTS = 3  # for a trial whose process died


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    trial: Trial
    error: str | None = None  # None if it is done


def run_all(trials: Sequence[Trial], root: Path, settings: Settings, workers: int | None = None) -> Iterator[Outcome]:
    """Run every trial in ``root/<its id>``, giving each outcome as it comes. Finished trials are not run again."""
    waiting = []
    for trial in trials:
        if (root / trial.id / "done").exists():
            yield Outcome(trial)
        else:
            waiting.append(trial)
    for attempt in range(ATTEMPTS):
        died: list[Trial] = []
        for outcome in _run_once(waiting, root, settings, workers):
            if outcome is None:
                continue
            if outcome.error == _DIED:
                died.append(outcome.trial)
            else:
                yield outcome
        if not died:
            return
        waiting = died
        if attempt == ATTEMPTS - 1:
            for trial in died:
                yield Outcome(trial, f"its process died {ATTEMPTS} times (out of memory, or killed)")


_DIED = "died"


def _run_once(trials: Sequence[Trial], root: Path, settings: Settings, workers: int | None) -> Iterator[Outcome]:
    if not trials:
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half-alive
    with ProcessPoolExecutor(workers or cores(), mp_context=context) as pool:
        futures: dict[Future[str | None], Trial] = {
            pool.submit(_work, trial, root / trial.id, settings): trial for trial in trials
        }
        try:
            for future in as_completed(futures):
                try:
                    yield Outcome(futures[future], future.result())
                except BrokenProcessPool:
                    yield Outcome(futures[future], _DIED)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _work(trial: Trial, folder: Path, settings: Settings) -> str | None:
    """Run one trial; what went wrong, in words, and in its folder."""
    try:
        run(trial, folder, settings)
        return None
    except StoppedError as stopped:
        return str(stopped)
    except PogmError as error:
        message = str(error)
    except Exception:
        message = traceback.format_exc()
    if folder.exists():
        write_whole(folder / "failed.json", json.dumps({"error": message}).encode())
    return message


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
