"""State of a folder of runs, read repeatedly: only changed files are read again, and nothing is written."""

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pogm._system.errors import PogmError
from pogm._system.files import read_json
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RECORDS
from pogm.benchmark.results.records import (
    TRIAL,
    RecordWarning,
    Run,
    finite,
    read_runs,
    table_order,
    with_distinct_titles,
    with_short_names,
)
from pogm.benchmark.runs.directory import PLAN, PLAN_BYTES, load_plan, load_sweep
from pogm.benchmark.runs.state import state_of

Stamp = tuple[tuple[int, int] | None, ...]  # modification time and size of some files; None: no such file
Plan = dict[str, Trial]  # by the name of the trial's folder
SWEEP = "sweep.json"
SKIPPED = {"mlruns", "wandb", "checkpoints"}  # folders with many files and without runs


@dataclass(frozen=True)
class RunState:
    """A run and its state."""

    run: Run
    state: str  # as in pogm status
    stamp: object  # changes if a file of the run changes
    seconds: float  # between the modification times of its first and its last file

    @property
    def steps(self) -> int:
        """Number of planned steps."""
        steps = self.run.trial.get("steps")
        return steps if isinstance(steps, int) and steps > 0 else 1

    @property
    def share(self) -> float:
        """Fraction of the steps that are done."""
        if self.state == "done":
            return 1.0
        last = self.run.records[-1]["step"] if self.run.records else -1
        return min(1.0, max(0.0, (last + 1) / self.steps))

    @property
    def step_seconds(self) -> float | None:
        """Time of all planned steps in seconds, without evaluations; None if no step was timed."""
        measured = [finite(record.get("seconds_per_step")) for record in self.run.records]
        known = [seconds for seconds in measured if seconds > 0]
        return fmean(known) * self.steps if known else None


@dataclass(frozen=True)
class FolderState:
    """State of a folder of runs at one time."""

    started: tuple[RunState, ...]
    waiting: tuple[Trial, ...]  # planned trials without a run
    has_plan: bool = True  # False: trials that wait are not known
    problems: tuple[str, ...] = ()  # messages about files that could not be read


class Watcher:
    """Reads a folder repeatedly. The content of a file is kept until the file changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[Path, tuple[Stamp, Run | str]] = {}  # by folder; str: the reason why it cannot be read
        self.plans: dict[Path, tuple[Stamp, Plan | str]] = {}  # by folder; str: the reason why it cannot be read

    def read(self) -> FolderState:
        """Read what changed. A folder that is removed meanwhile is left out, and so is a half-written record."""
        runs, plans = _find_folders(self.folder)
        problems = [] if self.folder.is_dir() else [f"The folder {self.folder} does not exist any more."]
        self.runs = {folder: self._read_run(folder) for folder in runs}
        self.plans = {folder: self._read_plan(folder) for folder in plans}
        readable = {folder: run for folder, (_, run) in self.runs.items() if isinstance(run, Run)}
        problems += [reason for _, reason in self.runs.values() if isinstance(reason, str)]
        waiting: dict[str, Trial] = {}
        for folder, (_, plan) in self.plans.items():
            if isinstance(plan, str):
                problems.append(plan)
            else:
                waiting |= {name: trial for name, trial in plan.items() if folder / name not in self.runs}
        return FolderState(tuple(self._states(readable)), tuple(waiting.values()), bool(plans), tuple(problems))

    def _states(self, readable: dict[Path, Run]) -> Iterator[RunState]:
        """Yield each run once, in the order of a report. Of copies, the one with more records is used."""
        by_id = {run.id: run for run in sorted(readable.values(), key=lambda run: (run.done, len(run.records)))}
        for run in sorted(with_short_names(with_distinct_titles(by_id.values())), key=table_order):
            stamp = self.runs[run.folder][0]
            with suppress(OSError):  # the folder was removed
                yield RunState(run, state_of(run.folder), stamp, _seconds_between(stamp))

    def _read_run(self, folder: Path) -> tuple[Stamp, Run | str]:
        stamp = _stamp(folder, TRIAL, RECORDS, "done", "failed.json")
        before = self.runs.get(folder)
        if before is not None and before[0] == stamp:
            return before
        with warnings.catch_warnings(record=True) as said, suppress(PogmError, OSError):
            warnings.simplefilter("always", RecordWarning)
            for run in read_runs(folder):
                if run.folder == folder:
                    return stamp, _without_rounds(run)
        return stamp, "; ".join(str(warning.message) for warning in said) or f"{folder} could not be read."

    def _read_plan(self, folder: Path) -> tuple[Stamp, Plan | str]:
        stamp = _stamp(folder, SWEEP, PLAN)
        before = self.plans.get(folder)
        if before is not None and before[0] == stamp:
            return before
        try:
            if not (folder / SWEEP).exists() and "steps" in read_json(folder / PLAN, PLAN_BYTES):
                return stamp, {}  # the options of pogm train, which are no list of trials
            trials = load_sweep(folder).plan() if (folder / SWEEP).exists() else load_plan(folder)
            return stamp, {trial.id: trial for trial in trials}
        except (PogmError, OSError, TypeError, ValueError) as error:
            return stamp, str(error)


def _find_folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders and the folders with a plan, at any depth. A run folder contains no other run."""
    runs, plans = [], []
    for parent, below, files in os.walk(folder):
        below[:] = sorted(set(below) - SKIPPED)
        if TRIAL in files:
            runs.append(Path(parent))
            below.clear()
        if {SWEEP, PLAN} & set(files):
            plans.append(Path(parent))
    return runs, plans


def _stamp(folder: Path, *names: str) -> Stamp:
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            facts = os.stat(folder / name)
            found.append((facts.st_mtime_ns, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _without_rounds(run: Run) -> Run:
    """Remove the measurements of every round, which can be large and which the board does not show."""
    return replace(run, records=tuple({k: v for k, v in record.items() if k != "rounds"} for record in run.records))


def _seconds_between(stamp: Stamp) -> float:
    times = [found[0] for found in stamp if found]
    return (max(times) - min(times)) / 1e9 if times else 0.0
