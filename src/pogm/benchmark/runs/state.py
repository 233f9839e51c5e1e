"""State of runs, from their directories alone. This module imports no torch: `pogm status` is to be fast."""

import os
from pathlib import Path

from pogm._system.errors import PogmError
from pogm._system.files import is_locked
from pogm.benchmark.results.record_digest import DONE, FAILED, RECORDS, TRIAL, read_verified

STATES = ("done", "running", "interrupted", "failed", "waiting")


def state_of(folder: Path) -> str:
    """Return the state of a run, one of `STATES`, from its directory alone."""
    if os.path.exists(f"{folder}/{DONE}"):
        return "done"
    if is_locked(folder):
        return "running"
    if (folder / FAILED).exists():
        return "failed"
    return "interrupted" if (folder / TRIAL).exists() else "waiting"


def find_problems(folder: Path) -> list[str]:
    """Return why runs of a sweep failed, and the names of finished runs whose records were altered or have no trial.

    Records are read only if their file was modified after the end of the run: a sweep can have many.
    """
    failed, altered = [], []
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    for run in (folder / name for name in names):
        if os.path.exists(f"{run}/{FAILED}") and state_of(run) == "failed":
            from pogm.benchmark.results.records import read_failure

            failed.append(f"{run} failed: {read_failure(run)}")
        try:
            done = os.stat(f"{run}/{DONE}").st_mtime_ns
        except OSError:
            continue
        if not os.path.exists(f"{run}/{TRIAL}"):
            altered.append(
                f"Expected {TRIAL} in {run}; found none, so that no table has this run. Restore it from a copy, or "
                "delete the folder to start this run again."
            )
        try:
            if os.stat(f"{run}/{RECORDS}").st_mtime_ns > done:
                read_verified(run)
        except (PogmError, OSError) as error:
            altered.append(str(error))
    return failed + altered
