"""Outcomes of trials: what every executor yields, and the error that ends a sweep."""

import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pogm._system.errors import DiskFullError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, SWEEP
from pogm.benchmark.runs.options import RunOptions

ATTEMPTS = 3  # for a trial if its process dies
GIVEN_UP = f"its process died {ATTEMPTS} times (out of memory, or killed)"


@dataclass(frozen=True)
class Outcome:
    """The end of a trial."""

    trial: Trial
    error: str | None = None  # None if it is done, or if its time was over
    ran: bool = True  # False if the outcome was known before: the trial was done, failed or run by another process
    is_cut: bool = False  # True if its time was over; it may have a checkpoint and a model


Execute = Callable[[Sequence[Trial], Path, RunOptions], Iterator[Outcome]]
"""An executor: runs trials in ``folder/<id>`` and yields an outcome for each one."""


def split_done(trials: Sequence[Trial], root: Path) -> tuple[list[Trial], list[Trial]]:
    """Split trials into those that are done and the others."""
    done = [trial for trial in trials if (root / trial.id / DONE).exists()]
    ids = {trial.id for trial in done}
    return done, [trial for trial in trials if trial.id not in ids]


def stop_sweep(trials: Sequence[Trial], root: Path, reason: DiskFullError) -> DiskFullError:
    """Return the error that ends a sweep on a full disk: the space that the trials need, and how to continue."""
    done, left = split_done(trials, root)  # running trials have checkpoints, and are larger
    needed = max(_count_bytes(root / trial.id) for trial in done or trials) * len(left)
    free = shutil.disk_usage(root).free
    space = f"about {needed / 2**20:.1f} MiB" if needed > free else "more space"  # no run may have a model yet
    command = f"pogm resume {shlex.quote(str(root))}" if (root / SWEEP).exists() else "the same command"
    return DiskFullError(
        f"Expected {space} for {len(left)} runs that are left in {root}; found {free / 2**20:.1f} MiB free. {reason} "
        f"The runs are interrupted. Continue with: {command}"
    )


def _count_bytes(folder: Path) -> int:
    """Return the size of all files in a run directory, which other processes may change."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
