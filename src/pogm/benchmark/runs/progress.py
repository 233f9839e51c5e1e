"""Progress of jobs and the time left: a bar on a terminal, plain lines elsewhere."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

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
    TransferSpeedColumn,
)
from rich.text import Text

from pogm._system.messages import is_quiet
from pogm._system.saved import parse_numbers
from pogm._system.terminal import escape_output, printable
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RECORDS, read_content
from pogm.benchmark.results.records import is_final
from pogm.benchmark.runs.time_left import RemainingRunTime, RemainingTime, TimeEstimate

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


def show_image_progress(items: Iterable[Item], total: int, what: str = "images") -> Iterator[Item]:
    """Show the progress of reading images, see `pogm.data.images.parallel.Progress`; nothing if it takes no time."""
    return show_progress(items, total, what, delay=IMAGE_SECONDS)


def show_progress(items: Iterable[Item], total: int, what: str, delay: float = 0.0) -> Iterator[Item]:
    """Yield the items and show their number and the time left; show nothing if ``total`` is 0.

    Items with ``ran = False``, such as outcomes of runs that were done before, do not count for the time left.

    Args:
        items: The items, which take time to compute.
        total: Their number.
        what: A word for them.
        delay: Seconds before anything is shown.
    """
    if total == 0:
        return iter(items)
    remaining = RemainingTime(total, time.monotonic())
    return _count(items, make_display(total, what, remaining), remaining, delay)


def track_steps(outcomes: "Iterable[Outcome]", trials: Sequence[Trial], folder: Path) -> "Iterator[Outcome]":
    """Yield the outcomes of a few long runs, and show the minibatches that they have trained, with the time left.

    Args:
        outcomes: Outcomes of the runs.
        trials: Their trials.
        folder: Folder of the run directories, whose records say how far each run is.
    """
    total = sum(trial.steps for trial in trials)
    remaining = RemainingTime(total, time.monotonic())
    show = make_display(total, "minibatches", remaining)
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


def _count(
    items: Iterable[Item],
    show: "_Bar | _Lines | _Nothing",
    remaining: RemainingTime,
    delay: float,
) -> Iterator[Item]:
    start = time.monotonic()
    with ExitStack() as shown:
        is_shown = delay <= 0
        if is_shown:
            shown.enter_context(show)
        for item in items:
            now = time.monotonic()
            remaining.add(1, now, getattr(item, "ran", True))
            show.advance()
            if not is_shown and now - start >= delay:
                is_shown = True
                shown.enter_context(show)
            yield item


def make_display(
    total: int, what: str, remaining: TimeEstimate, settle: float = SETTLE_SECONDS
) -> "_Bar | _Lines | _Nothing":
    if is_quiet():
        return _Nothing()
    console = make_console()
    return _Bar(total, what, remaining, console) if console.is_terminal else _Lines(total, what, remaining, settle)


def make_lines(total: int, what: str, remaining: TimeEstimate) -> "_Lines":
    """Return a display of plain lines."""
    return _Lines(total, what, remaining)


def make_console() -> Console:
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
            RemainingColumn(remaining),
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


class RemainingColumn(ProgressColumn):
    """The time left, as h:mm:ss."""

    def __init__(self, remaining: TimeEstimate):
        super().__init__()
        self.remaining = remaining

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text(clock_text(self.remaining.seconds(time.monotonic())), style="progress.remaining")


def clock_text(seconds: float | None) -> str:
    """Return a duration as h:mm:ss."""
    if seconds is None:
        return "-:--:--"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{left:02d}"


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
    console = make_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    remaining = RemainingTime(None, time.monotonic())
    left = RemainingColumn(remaining)
    hidden = is_quiet() or not console.is_terminal
    with Progress(*columns, left, console=console, disable=hidden) as progress:
        task = progress.add_task(what, total=None)

        def update(received: int, total: int | None) -> None:
            is_new = remaining.done > 0  # the first bytes may be those of an earlier download
            remaining.total = total
            remaining.add(received - remaining.done, time.monotonic(), is_new)
            progress.update(task, completed=received, total=total)

        yield update


class EvaluationLines:
    """Lines for the evaluations of one run: step, accuracies, time left."""

    def __init__(self, trial: Trial, remaining: TimeEstimate) -> None:
        self.trial, self.remaining = trial, remaining
        self.domains = list(map(printable, trial.dataset.domains))

    def __call__(self, record: dict[str, Any]) -> None:
        """Print the line of a record."""
        step, last = record["step"], self.trial.steps - 1
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
        elif (seconds := self.remaining.seconds(time.monotonic())) is not None:
            line += f"  {seconds:.0f} s left"
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
        self.lines = EvaluationLines(trial, self.remaining)
        self.counts_rounds = counts_rounds
        self.display = make_display(trial.steps, "minibatches", self.remaining, settle=0.0)
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
