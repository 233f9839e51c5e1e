"""State of a folder of runs, read repeatedly: only changed files are read again, and nothing is written."""

import os
import warnings
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pogm._system.collector import pause_collector
from pogm._system.errors import PogmError
from pogm._system.files import read_json
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.packed_records import PackedRecords
from pogm.benchmark.results.record_digest import RECORDS, SWEEP, TRIAL
from pogm.benchmark.results.record_file import RecordWarning, finite
from pogm.benchmark.results.records import UNREADABLE, Run, read_run
from pogm.benchmark.results.run_names import name_runs
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.sweep_directory import PLAN, PLAN_BYTES, load_plan, load_sweep

Stamp = tuple[tuple[int, int] | None, ...]  # modification time and size of some files; None: no such file
Plan = dict[str, Trial]  # by the name of the trial's folder
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

    @cached_property
    def step_seconds(self) -> float | None:
        """Time of all planned steps in seconds, without evaluations; None if no step was timed."""
        rate = self.run.seconds_per_step
        return None if rate is None else rate * self.steps

    @cached_property
    def overhead(self) -> float | None:
        """Time of the run so far, without compilation, divided by that of its steps; None if that is not known."""
        if self.step_seconds is None or self.seconds <= 0 or (self.state != "done" and len(self.run.records) < 2):
            return None
        first = self.run.records[0]
        slow = finite(first.get("seconds_per_step")) - self.step_seconds / self.steps
        compilation = max(0.0, slow * (first["step"] + 1)) if len(self.run.records) > 1 else 0.0
        return (self.seconds - compilation) / (self.step_seconds * max(self.share, 1 / self.steps))


@dataclass(frozen=True)
class FolderState:
    """State of a folder of runs at one time."""

    started: tuple[RunState, ...]
    waiting: tuple[Trial, ...]  # planned trials without a run
    has_plan: bool = True  # False: trials that wait are not known
    problems: tuple[str, ...] = ()  # messages about files that could not be read

    def count_states(self) -> dict[tuple[str, str], Counter[str]]:
        """Count the runs and the planned trials of each dataset and label by state."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for one in self.started:
            counts.setdefault((one.run.dataset, one.run.label), Counter())[one.state] += 1
        for trial in self.waiting:
            counts.setdefault((trial.dataset.title, trial.label), Counter())["waiting"] += 1
        return counts


class Watcher:
    """Reads a folder repeatedly. The content of a file is kept until the file changes, and so is all that follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, tuple[Stamp, Run | str]] = {}  # by folder; str: the reason why it cannot be read
        self.plans: dict[Path, tuple[Stamp, Plan | str]] = {}  # by folder; str: the reason why it cannot be read
        self._shown: dict[str, Run] = {}  # runs by folder, under the names that are shown, in the order of a report
        self._from: dict[str, Run] = {}  # all runs that these were made from
        self._states: dict[str, RunState] = {}  # by folder

    def read(self) -> FolderState:
        """Read what changed. A folder that is removed meanwhile is left out, and so is a half-written record."""
        known = self.runs.keys() - set(map(str, self.plans))
        runs, plans = _find_folders(str(self.folder), known)
        problems = [] if self.folder.is_dir() else [f"The folder {self.folder} does not exist any more."]
        with pause_collector(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            found = {folder: self._read_run(folder) for folder in runs}
        self.runs = {folder: (stamp, run) for folder, (stamp, run) in found.items() if stamp[0] is not None}
        self.plans = {folder: self._read_plan(folder) for folder in plans}
        problems += [reason for _, reason in self.runs.values() if isinstance(reason, str)]
        waiting: dict[str, Trial] = {}
        for folder, (_, plan) in self.plans.items():
            if isinstance(plan, str):
                problems.append(plan)
            else:
                waiting |= {name: trial for name, trial in plan.items() if f"{folder}/{name}" not in self.runs}
        self._name_runs({folder: run for folder, (_, run) in self.runs.items() if isinstance(run, Run)})
        self._states = {folder: self._state(folder, run) for folder, run in self._shown.items()}
        return FolderState(tuple(self._states.values()), tuple(waiting.values()), bool(plans), tuple(problems))

    def _name_runs(self, readable: dict[str, Run]) -> None:
        """Update the runs that are shown: each once, in the order of a report. Of copies, that with more records."""
        changed = {folder: run for folder, run in readable.items() if self._from.get(folder) is not run}
        is_same_plan = len(readable) == len(self._from) == len(self._shown) and all(
            folder in self._from and _identity(run) == _identity(self._from[folder]) for folder, run in changed.items()
        )
        if is_same_plan:  # names and order depend on the trials alone
            for folder, run in changed.items():
                shown = self._shown[folder]
                self._shown[folder] = replace(run, label=shown.label, trial=shown.trial)
        else:
            by_id = {run.id: run for run in sorted(readable.values(), key=lambda run: (run.done, len(run.records)))}
            self._shown = {str(run.folder): run for run in name_runs(by_id.values())}
        self._from = readable

    def _state(self, folder: str, run: Run) -> RunState:
        stamp, before = self.runs[folder][0], self._states.get(folder)
        state = "done" if stamp[2] else state_of(run.folder)
        if before is not None and before.run is run and (before.state, before.stamp) == (state, stamp):
            return before
        return RunState(run, state, stamp, _seconds_between(stamp))

    def _read_run(self, folder: str) -> tuple[Stamp, Run | str]:
        stamp = _stamp(folder, TRIAL, RECORDS, "done", "failed.json")
        if stamp[0] is None:
            return stamp, "was removed"
        before = self.runs.get(folder)
        if before is not None and before[0] == stamp:
            return before
        try:
            return stamp, _without_rounds(read_run(Path(folder)))
        except UNREADABLE as error:
            return stamp, f"{folder}/{TRIAL}: run left out ({type(error).__name__}: {error})"

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


def _find_folders(folder: str, known: Set[str]) -> tuple[list[str], list[Path]]:
    """Return the run folders and the folders with a plan, at any depth. A run folder contains no other run.

    Args:
        folder: Folder to search.
        known: Run folders without a plan, which are not listed again.
    """
    runs, plans, ahead = [], [], [folder]
    while ahead:
        current = ahead.pop()
        if current in known:
            runs.append(current)
            continue
        try:
            with os.scandir(current) as entries:
                is_folder = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        if is_folder.get(TRIAL) is False:
            runs.append(current)
        else:
            ahead += [f"{current}/{name}" for name, is_one in is_folder.items() if is_one and name not in SKIPPED]
        if False in (is_folder.get(SWEEP), is_folder.get(PLAN)):
            plans.append(Path(current))
    return sorted(runs, key=lambda path: path.split("/")), sorted(plans)


def _stamp(folder: Path | str, *names: str) -> Stamp:
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            facts = os.stat(f"{folder}/{name}")
            found.append((facts.st_mtime_ns, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _identity(run: Run) -> tuple[object, ...]:
    return run.id, run.label, run.trial, run.domains


def _without_rounds(run: Run) -> Run:
    """Remove the measurements of every round, which can be large and which the board does not show."""
    if isinstance(run.records, PackedRecords) and not run.records.has_field("rounds"):
        return run
    return replace(run, records=tuple({k: v for k, v in record.items() if k != "rounds"} for record in run.records))


def _seconds_between(stamp: Stamp) -> float:
    times = [found[0] for found in stamp if found]
    return (max(times) - min(times)) / 1e9 if times else 0.0
