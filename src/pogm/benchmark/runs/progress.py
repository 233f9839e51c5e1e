"""How far a job is and how long it will take: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import is_final

Item = TypeVar("Item")
LINE_SECONDS = 5.0  # between plain lines
AT_ONCE = 0.001  # seconds


def tracked(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Pass the items through and show how many have come; of none, show nothing."""
    if total == 0:
        return iter(items)
    console = Console(stderr=True)
    return _bar(items, total, what, console) if console.is_terminal else _lines(items, total, what)


def _bar(items: Iterable[Item], total: int, what: str, console: Console) -> Iterator[Item]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            progress.advance(task)
            yield item


def _lines(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    began = last = before = time.monotonic()
    fresh = 0  # items that took time: those that were there already say nothing about the others
    for count, item in enumerate(items, 1):
        now = time.monotonic()
        fresh, before = fresh + (now - before > AT_ONCE), now
        if now - last >= LINE_SECONDS or count == total:
            left = (now - began) / max(fresh, 1) * (total - count)
            print(
                f"{what}: {count}/{total}, {now - began:.0f} s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
            last = now
        yield item


@contextmanager
def transferred(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows how many bytes have come, and of how many."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda there, total: progress.update(task, completed=there, total=total)


class EvaluationLines:
    """A line per evaluation of one run: where it is, how well it goes, how long it will take."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.domains = trial.dataset.domains
        self.first: tuple[int, float] | None = None  # the first evaluation's step, and when it came

    def __call__(self, record: dict[str, Any]) -> None:
        """Print a record's line."""
        now, step, last = time.monotonic(), record["step"], self.trial.steps - 1
        inside, outside = record["accuracy"]["in"], record["accuracy"]["out"]
        validation = sum(outside[i] for i in self.trial.train_domains) / len(self.trial.train_domains)
        held_out = " ".join(f"{self.domains[i]} {inside[i]:.1%}" for i in self.trial.test_domains)
        line = f"step {step}/{last}  validation {validation:.1%}  held out {held_out}"
        if is_final(record):
            line += "  with averaged weights"
        elif self.first is None:
            self.first = (step, now)
        else:
            start, began = self.first
            line += f"  {(now - began) / (step - start) * (last - step):.0f} s left"
        try:
            print(line, flush=True)
        except BrokenPipeError:  # the run goes on
            silence()


def silence() -> None:
    """Print to nobody from now on: the reader, such as ``head``, has had enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
