"""A folder of runs, looked at again and again: only what has changed is read, and nothing is ever written."""

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pogm._system.errors import PogmError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import (
    TRIAL,
    RecordWarning,
    Run,
    finite,
    read_runs,
    table_order,
    with_distinct_titles,
)
from pogm.benchmark.runs.directory import PLAN, load_plan, load_sweep, state_of
from pogm.benchmark.runs.runner import RECORDS

Changed = tuple[tuple[int, int] | None, ...]
Plan = dict[str, Trial]  # by the name of the trial's folder
SWEEP = "sweep.json"
OTHERS = {"mlruns", "wandb", "checkpoints"}  # folders of many files, none of them ours to read


@dataclass(frozen=True)
class Watched:
    """A run and how it stands."""

    run: Run
    state: str  # as in pogm status
    changed: object  # another whenever its files are
    seconds: float  # between the first of its files and the last

    @property
    def steps(self) -> int:
        """How many there will be."""
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
    def cost(self) -> float | None:
        """Seconds that all steps take, without evaluations."""
        measured = [finite(record.get("seconds_per_step")) for record in self.run.records]
        known = [seconds for seconds in measured if seconds > 0]
        return fmean(known) * self.steps if known else None


@dataclass(frozen=True)
class Glance:
    """State of a folder of runs at one time."""

    begun: tuple[Watched, ...]
    waiting: tuple[Trial, ...]  # that are planned
    planned: bool = True  # whether anybody knows what is waiting
    remarks: tuple[str, ...] = ()  # what could not be read


class Watch:
    """Looks at a folder. What a file says is remembered until the file changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[Path, tuple[Changed, Run | None]] = {}  # by folder: when its files changed, and what they say
        self.plans: dict[Path, tuple[Changed, Plan | str]] = {}  # by folder, or why they cannot be read

    def look(self) -> Glance:
        """Read what is new. A folder that vanishes meanwhile is not there; a record half written comes next time."""
        runs, plans = _places(self.folder)
        remarks = [] if self.folder.is_dir() else [f"There is no folder {self.folder} any more."]
        self.read = {place: self._run(place) for place in runs}
        self.plans = {place: self._plan(place) for place in plans}
        known = {place: run for place, (_, run) in self.read.items() if run is not None}
        if lost := len(runs) - len(known):
            remarks.append(f"{lost} run folder{'s' * (lost > 1)} could not be read.")
        waiting: dict[str, Trial] = {}
        for place, (_, plan) in self.plans.items():
            if isinstance(plan, str):
                remarks.append(plan)
            else:
                waiting |= {name: trial for name, trial in plan.items() if place / name not in self.read}
        return Glance(tuple(self._standing(known)), tuple(waiting.values()), bool(plans), tuple(remarks))

    def _standing(self, known: dict[Path, Run]) -> Iterator[Watched]:
        """Each run once (of copies, the one that got further), in the order of a report."""
        by_id = {run.id: run for run in sorted(known.values(), key=lambda run: (run.done, len(run.records)))}
        for run in sorted(with_distinct_titles(by_id.values()), key=table_order):
            changed = self.read[run.folder][0]
            with suppress(OSError):  # it vanished
                yield Watched(run, state_of(run.folder), changed, _age(changed))

    def _run(self, place: Path) -> tuple[Changed, Run | None]:
        changed = _changed(place, TRIAL, RECORDS, "done", "failed.json")
        before = self.read.get(place)
        if before is not None and before[0] == changed:
            return before
        with warnings.catch_warnings(), suppress(PogmError, OSError):
            warnings.simplefilter("ignore", RecordWarning)
            for run in read_runs(place):
                if run.folder == place:
                    return changed, _light(run)
        return changed, None

    def _plan(self, place: Path) -> tuple[Changed, Plan | str]:
        changed = _changed(place, SWEEP, PLAN)
        before = self.plans.get(place)
        if before is not None and before[0] == changed:
            return before
        try:
            trials = load_sweep(place).plan() if (place / SWEEP).exists() else load_plan(place)
            return changed, {trial.id: trial for trial in trials}
        except (PogmError, OSError, TypeError, ValueError) as error:
            return changed, str(error)


def _places(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders of runs, and those with a plan, at or below a folder; within a run there is no other."""
    runs, plans = [], []
    for parent, below, files in os.walk(folder):
        below[:] = sorted(set(below) - OTHERS)
        if TRIAL in files:
            runs.append(Path(parent))
            below.clear()
        if {SWEEP, PLAN} & set(files):
            plans.append(Path(parent))
    return runs, plans


def _changed(place: Path, *names: str) -> Changed:
    """When each of the files was written last, and its size; None where there is none."""
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            facts = os.stat(place / name)
            found.append((facts.st_mtime_ns, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _light(run: Run) -> Run:
    """Without what a probe measured round by round, which no page here shows and which can be large."""
    return replace(run, records=tuple({k: v for k, v in record.items() if k != "rounds"} for record in run.records))


def _age(changed: Changed) -> float:
    times = [found[0] for found in changed if found]
    return (max(times) - min(times)) / 1e9 if times else 0.0
