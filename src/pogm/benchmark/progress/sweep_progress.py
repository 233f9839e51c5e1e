"""Progress of many runs: a table of algorithms and datasets on a terminal, plain lines elsewhere."""

import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Self

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pogm._system.messages import is_quiet
from pogm._system.terminal import escape_output, printable
from pogm.benchmark.costs.run_costs import RunCosts, read_times
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.display import REFRESHES, Lines, clock_text, make_console, make_display
from pogm.benchmark.progress.time_left import RemainingSweepTime
from pogm.benchmark.results.record_digest import RECORDS
from pogm.benchmark.results.record_file import Record, RecordWarning, accuracy, is_final, read_records
from pogm.benchmark.results.records import UNREADABLE, read_run
from pogm.benchmark.runs.state import state_of

if TYPE_CHECKING:
    from pogm.benchmark.executors.outcomes import Outcome

POLL_SECONDS = 1.0  # between two looks at the run folders
POLL_SHARE = 20  # a look takes at most this part of the time
COLUMNS = {"done": "done", "running": "run", "failed": "fail", "waiting": "wait"}  # headings of states
NUMBERS_WIDTH = 30  # characters of the columns with numbers


class SweepState:
    """States and progress of runs, from their folders. Finished runs are read once.

    Args:
        trials: All trials.
        folder: Folder of the run directories.
        now: Time of the start in seconds. What is in the folders then was done before.
    """

    def __init__(self, trials: Sequence[Trial], folder: Path, now: float):
        self.trials, self.folder = {trial.id: trial for trial in trials}, folder
        self.states = dict.fromkeys(self.trials, "waiting")  # by id; replaced as a whole
        self.scores: dict[str, float] = {}  # accuracy on the held-out domain of finished runs, by id
        self.counted = dict.fromkeys(self.trials, 0)  # minibatches, by id
        self.costs = RunCosts(trials, on_gpu=torch.cuda.is_available())
        self.interrupted: set[str] = set()  # ids of runs that were stopped and may go on
        self._read()
        self.remaining = RemainingSweepTime(self._parts(), now)
        self.update(now)

    def update(self, now: float) -> None:
        """Read what changed."""
        self._read()
        costs = {name: cost for name, cost in self.costs.predict().items() if self.states[name] != "failed"}
        self.remaining.update(self._parts(), costs, bool(self.costs.times), now)

    @property
    def steps(self) -> int:
        """Number of minibatches that are trained."""
        return sum(self.counted.values())

    def _parts(self) -> dict[str, float]:
        return {name: count / self.trials[name].steps for name, count in self.counted.items()}

    def _read(self) -> None:
        states = dict(self.states)
        try:
            started = set(os.listdir(self.folder))
        except OSError:
            started = set()
        for name, trial in self.trials.items():
            if name not in started or states[name] == "done":
                continue
            folder = self.folder / name
            state = state_of(folder)
            if state == "interrupted":
                self.interrupted.add(name)
            states[name] = "waiting" if state == "interrupted" else state  # it waits for its turn
            is_done = state == "done"
            records, score = _read_finished(folder, trial) if is_done else (_read_records(folder), None)
            count = trial.steps if is_done else min(records[-1]["step"] + 1, trial.steps) if records else 0
            if is_done or count > self.counted[name]:
                self.counted[name] = count
                if (times := read_times(folder, records, name in self.interrupted)) is not None:
                    self.costs.times[name] = times
            if score is not None:
                self.scores[name] = score
        self.states = states

    def rows(self) -> dict[tuple[str, str], tuple[Counter[str], float | None]]:
        """Return the number of runs in each state and the mean score, by dataset and label."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        scores: dict[tuple[str, str], list[float]] = {}
        known = dict(self.scores)
        for name, state in self.states.items():
            kind = self.trials[name].dataset.title, self.trials[name].label
            counts.setdefault(kind, Counter())[state] += 1
            if name in known:
                scores.setdefault(kind, []).append(known[name])
        return {kind: (found, fmean(scores[kind]) if kind in scores else None) for kind, found in counts.items()}


def track_sweep(outcomes: "Iterable[Outcome]", trials: Sequence[Trial], folder: Path) -> "Iterator[Outcome]":
    """Yield the outcomes of runs, and show their progress with the time left; nothing without trials or with --quiet.

    Args:
        outcomes: Outcomes of the runs.
        trials: Their trials.
        folder: Folder of the run directories, whose records say how far each run is.
    """
    if not trials or is_quiet():
        yield from outcomes
        return
    state = SweepState(trials, folder, time.monotonic())
    console = make_console()
    lines = Lines(len(trials), "runs", state.remaining)
    with _LiveTable(state, console) if console.is_terminal else lines, _Poll(state) as poll:
        for outcome in outcomes:
            if outcome.ran and outcome.trial.id not in state.scores:
                poll.update()
            lines.advance()
            yield outcome


def track_steps(outcomes: "Iterable[Outcome]", trials: Sequence[Trial], folder: Path) -> "Iterator[Outcome]":
    """Yield the outcomes of a few long runs, and show the minibatches that they have trained, with the time left.

    Args:
        outcomes: Outcomes of the runs.
        trials: Their trials.
        folder: Folder of the run directories, whose records say how far each run is.
    """
    state = SweepState(trials, folder, time.monotonic())
    show = make_display(sum(trial.steps for trial in trials), "minibatches", state.remaining)
    show.advance(state.steps)
    with show, _Poll(state, show.advance):
        yield from outcomes


class _Poll:
    """A thread that updates the state of runs regularly.

    Args:
        state: The state.
        advance: Called with the number of minibatches that were trained since the last call.
    """

    def __init__(self, state: SweepState, advance: Callable[[int], None] = lambda count: None):
        self.state, self.advance = state, advance
        self.ended, self.changed = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self._poll, daemon=True)

    def update(self) -> float:
        """Update the state; return the seconds that it took."""
        with self.changed:
            begin, before = time.monotonic(), self.state.steps
            self.state.update(begin)
            if self.state.steps > before:
                self.advance(self.state.steps - before)
            return time.monotonic() - begin

    def _poll(self) -> None:
        seconds = 0.0
        while not self.ended.wait(max(POLL_SECONDS, POLL_SHARE * seconds)):
            seconds = self.update()

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        self.update()


class _LiveTable:
    """A table with a row for each dataset and algorithm, and a line with the time left."""

    def __init__(self, state: SweepState, console: Console):
        self.state, self.console, self.start = state, console, time.monotonic()
        self.live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=REFRESHES,
            redirect_stdout=sys.stdout.isatty(),  # lines are printed above the table; a pipe is left alone
        )

    def render(self) -> Group:
        """Return the table for the current size of the terminal; rows that do not fit are counted."""
        rows, height = self.state.rows(), max(3, self.console.size.height - 5)
        names = max(8, (self.console.size.width - NUMBERS_WIDTH) // 2)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("dataset", no_wrap=True, max_width=names)
        table.add_column("algorithm", no_wrap=True, max_width=names)
        for heading in (*COLUMNS.values(), "acc %"):
            table.add_column(heading, justify="right", no_wrap=True)
        order = sorted(rows, key=lambda kind: not rows[kind][0]["running"])[:height] if len(rows) > height else rows
        for kind in rows:
            if kind in order:
                counts, score = rows[kind]
                texts = [*map(printable, kind), *(str(counts[state]) for state in COLUMNS)]
                table.add_row(*map(Text, texts), "" if score is None else f"{100 * score:.1f}")
        total: Counter[str] = sum((counts for counts, _ in rows.values()), Counter())
        now = time.monotonic()
        more = f", {len(rows) - len(order)} more rows" if len(rows) > len(order) else ""
        left = clock_text(self.state.remaining.seconds(now))
        text = f"{total['done']}/{total.total()} runs, {clock_text(now - self.start)}, left {left}{more}"
        return Group(table, Text(text, no_wrap=True, overflow="ellipsis"))

    def __enter__(self) -> None:
        self.live.start()
        escape_output()  # rich prints lines above the table and would interpret their control characters

    def __exit__(self, *_: object) -> None:
        self.live.stop()  # restores the streams


def _read_records(folder: Path) -> Sequence[Record]:
    """Return the records of a run in progress; none if they cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)  # a line that is being written
            return [record for record in read_records(folder / RECORDS) if not is_final(record)]
    except UNREADABLE:
        return ()


def _read_finished(folder: Path, trial: Trial) -> tuple[Sequence[Record], float | None]:
    """Return the records of a finished run, and the accuracy of its selected step on the held-out domains, if any."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            run = read_run(folder)
            best = run.best_record
    except UNREADABLE:
        return (), None
    values = [accuracy(best[1], "in", domain) for domain in trial.test_domains] if best else []
    known = [value for value in values if value == value]
    return run.records, fmean(known) if known else None
