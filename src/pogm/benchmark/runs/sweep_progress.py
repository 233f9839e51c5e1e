"""Progress of a sweep: a table of algorithms and datasets on a terminal, plain lines elsewhere."""

import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pogm._system.messages import is_quiet
from pogm._system.terminal import escape_output, printable
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import UNREADABLE, RecordWarning, accuracy, read_run
from pogm.benchmark.runs.estimate import cost_ratio
from pogm.benchmark.runs.progress import REFRESHES, clock_text, count_steps, make_console, make_lines
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.time_left import RemainingTime

if TYPE_CHECKING:
    from pogm.benchmark.runs.executors import Outcome

POLL_SECONDS = 1.0  # between two looks at the run folders
POLL_SHARE = 20  # a look takes at most this part of the time
COLUMNS = {"done": "done", "running": "run", "failed": "fail", "waiting": "wait"}  # headings of states
NUMBERS_WIDTH = 30  # characters of the columns with numbers


class SweepState:
    """States and progress of the runs of a sweep, from their folders. Finished runs are read once.

    Work is counted in minibatches, multiplied by the relative cost of the algorithm in ``costs.json``.

    Args:
        trials: All trials.
        folder: Folder of the run directories.
        now: Time of the start in seconds.
    """

    def __init__(self, trials: Sequence[Trial], folder: Path, now: float):
        self.trials, self.folder = {trial.id: trial for trial in trials}, folder
        costs = {trial.label: _relative_cost(trial) for trial in trials}
        self.costs = {trial.id: costs[trial.label] for trial in trials}  # of a minibatch
        self.remaining = RemainingTime(sum(self.costs[trial.id] * trial.steps for trial in trials), now)
        self.states = dict.fromkeys(self.trials, "waiting")  # by id; replaced as a whole
        self.scores: dict[str, float] = {}  # accuracy on the held-out domain of finished runs, by id
        self.counted = dict.fromkeys(self.trials, 0)  # minibatches, by id

    def update(self, now: float, is_new: bool = True) -> None:
        """Read what changed. ``is_new`` is False at the start, for runs of an earlier process."""
        states, work, dropped = dict(self.states), 0.0, 0.0
        try:
            started = set(os.listdir(self.folder))
        except OSError:
            started = set()
        for name, trial in self.trials.items():
            if name not in started or states[name] == "done":
                continue
            states[name] = _shown_state(state_of(self.folder / name))
            steps = trial.steps if states[name] == "done" else count_steps([trial], self.folder)
            work += self.costs[name] * max(steps - self.counted[name], 0)
            self.counted[name] = max(steps, self.counted[name])
            if states[name] == "failed":  # its other minibatches are not trained
                dropped += self.costs[name] * (trial.steps - self.counted[name])
                self.counted[name] = trial.steps
            if states[name] == "done" and (score := _score(self.folder / name, trial)) is not None:
                self.scores[name] = score
        self.states = states
        self.remaining.add(work, now, is_new)
        if dropped:
            self.remaining.add(dropped, now, is_new=False)

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
    state.update(time.monotonic(), is_new=False)
    console = make_console()
    lines = make_lines(len(trials), "runs", state.remaining)
    show = _LiveTable(state, console) if console.is_terminal else lines
    ended, changed = threading.Event(), threading.Lock()

    def update() -> float:
        with changed:
            begin = time.monotonic()
            state.update(begin)
            return time.monotonic() - begin

    def poll() -> None:
        seconds = 0.0
        while not ended.wait(max(POLL_SECONDS, POLL_SHARE * seconds)):
            seconds = update()

    thread = threading.Thread(target=poll, daemon=True)
    with show:
        thread.start()
        try:
            for outcome in outcomes:
                if outcome.ran and outcome.trial.id not in state.scores:
                    update()
                lines.advance()
                yield outcome
        finally:
            ended.set()
            thread.join()
            update()


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


def _relative_cost(trial: Trial) -> float:
    """Return the time of a minibatch relative to ERM; 1 if it is not known."""
    device = "H200" if torch.cuda.is_available() else "CPU"
    column = f"{device}, {'resnet50' if trial.dataset.large else 'mnist_cnn'}"
    return cost_ratio(trial.label, "ERM", column) or 1.0


def _shown_state(state: str) -> str:
    """Return the state of a run in a sweep that is in progress: an interrupted run waits for its turn."""
    return "waiting" if state == "interrupted" else state


def _score(folder: Path, trial: Trial) -> float | None:
    """Return the accuracy of the selected step on the held-out domains of a finished run; None if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            best = read_run(folder).best_record
    except UNREADABLE:
        return None
    values = [accuracy(best[1], "in", domain) for domain in trial.test_domains] if best else []
    known = [value for value in values if value == value]
    return fmean(known) if known else None
