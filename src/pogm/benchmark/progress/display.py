"""Displays of progress and the time left: a bar on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

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
from pogm._system.terminal import escape_output
from pogm.benchmark.progress.time_left import RemainingTransferTime, TimeEstimate

LINE_SECONDS = 5.0  # minimum time between plain lines
LINE_SHARE = 1 / 20  # minimum time between plain lines, as a part of the elapsed time: the log of a day stays readable
REFRESHES = 4  # of a bar, per second
SETTLE_SECONDS = 0.5  # wait after an item before a line: items of a batch finish together


class Display(Protocol):
    """Shows the number of finished items and the time left, from its start to its end."""

    def advance(self, count: int = 1) -> None:
        """Count items."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def make_display(total: int, what: str, remaining: TimeEstimate, settle: float = SETTLE_SECONDS) -> Display:
    """Return the display for this terminal or file: a bar, plain lines, or nothing with --quiet.

    Args:
        total: Number of items.
        what: A word for them.
        remaining: Estimate of the time left.
        settle: Seconds without an item before a plain line.
    """
    if is_quiet():
        return _Nothing()
    console = make_console()
    return _Bar(total, what, remaining, console) if console.is_terminal else Lines(total, what, remaining, settle)


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


class Lines:
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
    remaining = RemainingTransferTime(time.monotonic())
    left = RemainingColumn(remaining)
    hidden = is_quiet() or not console.is_terminal
    with Progress(*columns, left, console=console, disable=hidden) as progress:
        task = progress.add_task(what, total=None)

        def update(received: int, total: int | None) -> None:
            remaining.receive(received, total, time.monotonic())
            progress.update(task, completed=received, total=total)

        yield update
