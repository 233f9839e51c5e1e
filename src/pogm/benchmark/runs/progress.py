"""Progress of jobs and the time left: a bar on a terminal, plain lines elsewhere."""

import math
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from pogm._system.messages import is_quiet
from pogm._system.saved import parse_numbers
from pogm._system.terminal import escape_output, printable
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RECORDS, read_content
from pogm.benchmark.results.records import is_final
from pogm.engine.trainer import Schedule

if TYPE_CHECKING:
    from pogm.benchmark.runs.executors import Outcome

Item = TypeVar("Item")
IMAGE_SECONDS = 2.0  # before the progress of listing or reading images is shown
LINE_SECONDS = 5.0  # minimum time between plain lines
LINE_SHARE = 1 / 20  # minimum time between plain lines, as a part of the elapsed time: the log of a day stays readable
DISPLAY_SECONDS = 0.1  # minimum time between two updates of the display by a run
REFRESHES = 4  # of a bar, per second
POLL_SECONDS = 1.0  # between two looks at the records of long runs
SETTLE_SECONDS = 0.5  # wait after an item before a line: items of a batch finish together


class TimeEstimate(Protocol):
    """Estimate of the time left."""

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None if it is not known."""


class RemainingTime:
    """Estimate of the time left, from all work that was finished since the start.

    The estimate is robust to items that finish together: it uses the mean rate since the start, never the time between
    two items. Work that was done before the start does not count for the rate. Items that run in parallel with the last
    finished one are assumed to be half done; the first ``at_once`` items are assumed to finish together.

    Args:
        total: Work in total, such as a number of items or of steps.
        now: Time of the start in seconds.
        at_once: Number of items that run in parallel, or as one batch.
        items: Number of items in total, to convert ``at_once`` to work.
    """

    def __init__(self, total: float, now: float, at_once: int = 1, items: int | None = None):
        self.start = self.last = now
        self.left = total
        self.finished = 0.0
        self.parallel = at_once * total / (items or total) if at_once > 1 else 0.0  # work of the items in parallel

    def add(self, work: float, now: float, is_new: bool = True) -> None:
        """Count finished work; ``is_new`` is False for work that was done before the start."""
        self.left -= work
        if is_new:
            self.finished += work
            self.last = now
        elif not self.finished:
            self.start = self.last = now

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None before the first item."""
        if self.left <= 0:
            return 0.0
        if not self.finished:
            return None
        half_done = min(self.parallel, self.left) / 2
        in_progress = max(min(self.parallel - self.finished, self.left), half_done)
        rate = (self.finished + in_progress) / max(self.last - self.start, 1e-9)
        return max((self.left - in_progress) / rate - (now - self.last), 0.0)


class RemainingRunTime:
    """Estimate of the time left of one run, from its minibatches and its evaluations.

    Both are timed separately, so that the estimate is right long before the second evaluation. Minibatches up to the
    first evaluation are not used after it: their time contains compilation.

    Args:
        schedule: Length of the run and its evaluations.
    """

    def __init__(self, schedule: Schedule):
        self.points, self.steps = schedule.points(), schedule.steps
        self.count = self.evaluated = 0  # minibatches: in total, and up to the last evaluation
        self.last = self.evaluation_end = 0.0
        self.evaluation_seconds: float | None = None  # of the last evaluation
        self.trained, self.train_seconds = 0, 0.0  # between evaluations

    def start(self, count: int, now: float) -> None:
        """Begin, or continue after this number of minibatches."""
        self.count = self.evaluated = count
        self.last = self.evaluation_end = now

    def add_round(self, count: int, now: float) -> None:
        """Set the number of minibatches that are trained."""
        self.count, self.last = count, now

    def add_evaluation(self, count: int, seconds_per_step: float | None, now: float) -> None:
        """Set the number of minibatches at the end of an evaluation, and the time of each since the one before."""
        trained = count - self.evaluated
        train_seconds = (seconds_per_step or 0.0) * trained
        is_first = self.evaluation_seconds is None
        self.evaluation_seconds = max(now - self.evaluation_end - train_seconds, 0.0)
        if not is_first:
            self.trained += trained
            self.train_seconds += train_seconds
        self.count = self.evaluated = count
        self.last = self.evaluation_end = now

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None before the first minibatch is timed."""
        if self.evaluated >= self.steps:
            return 0.0
        trained = self.trained + self.count - self.evaluated
        if not trained:
            return None
        per_step = (self.train_seconds + self.last - self.evaluation_end) / trained
        evaluations = len(self.points) - bisect_left(self.points, self.evaluated)
        total = (self.steps - self.count) * per_step + evaluations * (self.evaluation_seconds or 0.0)
        return max(total - (now - self.last), 0.0)


def show_image_progress(items: Iterable[Item], total: int, what: str = "images") -> Iterator[Item]:
    """Show the progress of reading images, see `pogm.data.images.parallel.Progress`; nothing if it takes no time."""
    return show_progress(items, total, what, delay=IMAGE_SECONDS)


def show_progress(items: Iterable[Item], total: int, what: str, at_once: int = 1, delay: float = 0.0) -> Iterator[Item]:
    """Yield the items and show their number and the time left; show nothing if ``total`` is 0.

    Items with ``ran = False``, such as outcomes of runs that were done before, do not count for the time left.

    Args:
        items: The items, which take time to compute.
        total: Their number.
        what: A word for them.
        at_once: Number of items that are computed in parallel.
        delay: Seconds before anything is shown.
    """
    return _track(items, total, what, RemainingTime(total, time.monotonic(), at_once), lambda item: 1.0, delay)


def track_runs(outcomes: "Iterable[Outcome]", trials: Sequence[Trial], at_once: int = 1) -> "Iterator[Outcome]":
    """Yield the outcomes of trials like `show_progress`. The time left depends on the steps of each trial."""
    steps = float(sum(trial.steps for trial in trials))
    remaining = RemainingTime(steps, time.monotonic(), at_once, items=len(trials))
    return _track(outcomes, len(trials), "runs", remaining, lambda outcome: float(outcome.trial.steps))


def track_steps(outcomes: "Iterable[Outcome]", trials: Sequence[Trial], folder: Path) -> "Iterator[Outcome]":
    """Yield the outcomes of a few long runs, and show the minibatches that they have trained, with the time left.

    Args:
        outcomes: Outcomes of the runs.
        trials: Their trials.
        folder: Folder of the run directories, whose records say how far each run is.
    """
    total = sum(trial.steps for trial in trials)
    remaining = RemainingTime(total, time.monotonic())
    show = _make_display(total, "minibatches", remaining)
    before = count_steps(trials, folder)
    remaining.add(before, time.monotonic(), is_new=False)
    show.advance(before)
    ended, counted = threading.Event(), before

    def update() -> None:
        nonlocal counted
        found = count_steps(trials, folder)
        if found > counted:
            remaining.add(found - counted, time.monotonic())
            show.advance(found - counted)
            counted = found

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            update()

    thread = threading.Thread(target=poll, daemon=True)
    with show:
        thread.start()
        try:
            yield from outcomes
        finally:
            ended.set()
            thread.join()
            update()


def count_steps(trials: Sequence[Trial], folder: Path) -> int:
    """Return the number of minibatches that runs have trained, from the last record of each."""
    count = 0
    for trial in trials:
        try:
            lines = read_content(folder / trial.id / RECORDS).splitlines()
            count += min(int(parse_numbers(lines[-1])["step"]) + 1, trial.steps) if lines else 0
        except (OSError, ValueError, KeyError, TypeError):  # not begun, or a line that is being written
            continue
    return count


def _track(
    items: Iterable[Item],
    total: int,
    what: str,
    remaining: RemainingTime,
    work: Callable[[Item], float],
    delay: float = 0.0,
) -> Iterator[Item]:
    if total == 0:
        return iter(items)
    show = _make_display(total, what, remaining)
    return _count(items, show, remaining, work, delay)


def _count(
    items: Iterable[Item],
    show: "_Bar | _Lines | _Nothing",
    remaining: RemainingTime,
    work: Callable[[Item], float],
    delay: float,
) -> Iterator[Item]:
    start = time.monotonic()
    with ExitStack() as shown:
        is_shown = delay <= 0
        if is_shown:
            shown.enter_context(show)
        for item in items:
            now = time.monotonic()
            remaining.add(work(item), now, getattr(item, "ran", True))
            show.advance()
            if not is_shown and now - start >= delay:
                is_shown = True
                shown.enter_context(show)
            yield item


def _make_display(
    total: int, what: str, remaining: TimeEstimate, settle: float = SETTLE_SECONDS
) -> "_Bar | _Lines | _Nothing":
    if is_quiet():
        return _Nothing()
    console = _make_console()
    return _Bar(total, what, remaining, console) if console.is_terminal else _Lines(total, what, remaining, settle)


def _make_console() -> Console:
    """Return a console on standard error that does not interpret the text of names as markup."""
    return Console(
        file=getattr(sys.stderr, "rich_proxied_file", sys.stderr), markup=False, emoji=False, highlight=False
    )


class _Nothing:
    """Nothing is shown, because of --quiet."""

    def advance(self, count: int = 1) -> None:
        """Count items."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Bar:
    """A progress bar with the time left."""

    def __init__(self, total: int, what: str, remaining: TimeEstimate, console: Console):
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            _RemainingColumn(remaining),
        )
        self.progress = Progress(
            *columns,
            console=console,
            refresh_per_second=REFRESHES,
            redirect_stdout=sys.stdout.isatty(),  # lines are printed above the bar; the output to a pipe is left alone
        )
        self.task = self.progress.add_task(what, total=total)

    def advance(self, count: int = 1) -> None:
        """Count items."""
        self.progress.advance(self.task, count)

    def __enter__(self) -> None:
        self.progress.start()
        escape_output()  # rich prints lines above the bar and would interpret their control characters

    def __exit__(self, *_: object) -> None:
        self.progress.stop()  # restores the streams


class _RemainingColumn(ProgressColumn):
    """The time left, as h:mm:ss."""

    def __init__(self, remaining: TimeEstimate):
        super().__init__()
        self.remaining = remaining

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        seconds = self.remaining.seconds(time.monotonic())
        if seconds is None:
            return Text("-:--:--", style="progress.remaining")
        minutes, left = divmod(round(seconds), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02d}:{left:02d}", style="progress.remaining")


class _Lines:
    """Plain lines. A thread prints them: a line in the middle of a batch that finishes would be misleading."""

    def __init__(self, total: int, what: str, remaining: TimeEstimate, settle: float = SETTLE_SECONDS):
        self.total, self.what, self.remaining, self.settle = total, what, remaining, settle
        self.start = self.printed = self.counted = time.monotonic()
        self.count = self.shown = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._print_regularly, daemon=True)

    def advance(self, count: int = 1) -> None:
        """Count items."""
        self.count += count
        self.counted = time.monotonic()

    def print_if_due(self, now: float) -> None:
        """Print a line if items arrived since the last one, some time ago, and the last of them has settled."""
        interval = max(LINE_SECONDS, LINE_SHARE * (now - self.start))
        if self.count > self.shown and now - self.printed >= interval and now - self.counted >= self.settle:
            self.print_line(now)

    def print_line(self, now: float) -> None:
        """Print a line."""
        self.shown, self.printed = self.count, now
        seconds = self.remaining.seconds(now)
        left = "time left unknown" if seconds is None else f"{seconds:.0f} s left"
        print(f"{self.what}: {self.count}/{self.total}, {now - self.start:.0f} s, {left}", file=sys.stderr, flush=True)

    def _print_regularly(self) -> None:
        while not self.ended.wait(SETTLE_SECONDS):
            self.print_if_due(time.monotonic())

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        if self.shown < self.count == self.total:
            self.print_line(time.monotonic())


@contextmanager
def show_transfer(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a download; the function that is returned takes the bytes received and the total."""
    console = _make_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    hidden = is_quiet() or not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as progress:
        task = progress.add_task(what, total=None)
        yield lambda received, total: progress.update(task, completed=received, total=total)


class EvaluationLines:
    """Lines for the evaluations of one run: step, accuracies, time left."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.domains = list(map(printable, trial.dataset.domains))
        self.first: tuple[int, float] | None = None  # step and time of the first evaluation

    def __call__(self, record: dict[str, Any]) -> None:
        """Print the line of a record."""
        now, step, last = time.monotonic(), record["step"], self.trial.steps - 1
        is_regression = self.trial.dataset.task == "regression"
        scores, form = (record["r2"], "R² {:.3f}") if is_regression else (record["accuracy"], "{:.1%}")
        inside, outside = scores["in"], scores["out"]
        validation = sum(outside[i] for i in self.trial.train_domains) / len(self.trial.train_domains)
        known = [i for i in self.trial.test_domains if not math.isnan(inside[i])]
        held_out = " ".join(f"{self.domains[i]} {form.format(inside[i])}" for i in known)
        line = f"step {step}/{last}  validation {form.format(validation)}"
        line += f"  held out {held_out}" if held_out else ""
        if is_final(record):
            line += "  with averaged weights"
        elif self.first is None:
            self.first = (step, now)
        else:
            start, began = self.first
            line += f"  {(now - began) / (step - start) * (last - step):.0f} s left"
        print(line, flush=True)


class RunProgress:
    """Progress of one run: minibatches and the time left on standard error, a line for each evaluation on standard
    output.

    Args:
        trial: The trial.
        counts_rounds: Count every round. On a GPU, rounds are only queued when they are counted; there, minibatches
            are counted at evaluations.
    """

    def __init__(self, trial: Trial, counts_rounds: bool = True):
        self.remaining = RemainingRunTime(trial.schedule)
        self.lines = EvaluationLines(trial)
        self.counts_rounds = counts_rounds
        self.display = _make_display(trial.steps, "minibatches", self.remaining, settle=0.0)
        self.displayed = 0  # minibatches
        self.updated: float | None = None  # time of the last update of the display

    def on_round(self, count: int) -> None:
        """Count the minibatches at the start and after a round."""
        now = time.monotonic()
        if self.updated is None:
            self.remaining.start(count, now)
            self._update(now)
        elif self.counts_rounds:
            self.remaining.add_round(count, now)
            if now - self.updated >= DISPLAY_SECONDS:
                self._update(now)

    def on_record(self, record: dict[str, Any]) -> None:
        """Print the line of a record, and count its minibatches."""
        if not is_final(record):
            now = time.monotonic()
            self.remaining.add_evaluation(record["step"] + 1, record["seconds_per_step"], now)
            self._update(now)
        self.lines(record)

    def _update(self, now: float) -> None:
        self.display.advance(self.remaining.count - self.displayed)
        self.displayed, self.updated = self.remaining.count, now

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.display.__exit__(*error)


def silence() -> None:
    """Discard standard output from now on: its reader, such as ``head``, has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
