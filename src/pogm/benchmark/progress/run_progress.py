"""Progress of items that take time, and of one run, with the time left."""

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, repeat
from typing import Any, Self, TypeVar

from pogm._system.terminal import printable
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.display import Display, make_display
from pogm.benchmark.progress.time_left import RemainingRunTime, RemainingTime, TimeEstimate
from pogm.benchmark.results.record_file import is_final, mean_score

Item = TypeVar("Item")
IMAGE_SECONDS = 2.0  # before the progress of listing or reading images is shown
DISPLAY_SECONDS = 0.1  # minimum time between two updates of the display by a run


def show_image_progress(
    items: Iterable[Item], total: int, what: str = "images", work: Sequence[float] = ()
) -> Iterator[Item]:
    """Show the progress of reading images, see `pogm.data.images.parallel.Progress`; nothing if it takes no time."""
    return show_progress(items, total, what, work, delay=IMAGE_SECONDS)


def show_progress(
    items: Iterable[Item], total: int, what: str, work: Sequence[float] = (), delay: float = 0.0
) -> Iterator[Item]:
    """Yield the items and show their number and the time left; show nothing if ``total`` is 0.

    Items with ``ran = False``, such as outcomes of runs that were done before, do not count for the time left.

    Args:
        items: The items, which take time to compute.
        total: Their number.
        what: A word for them.
        work: Relative time that each of them takes, for the time left; empty if all take equally long.
        delay: Seconds before anything is shown.
    """
    if total == 0:
        return iter(items)
    work = work or [1.0] * total
    remaining = RemainingTime(sum(work), time.monotonic())
    return _count(items, make_display(total, what, remaining), remaining, work, delay)


def _count(
    items: Iterable[Item],
    show: Display,
    remaining: RemainingTime,
    work: Sequence[float],
    delay: float,
) -> Iterator[Item]:
    start = time.monotonic()
    with ExitStack() as shown:
        is_shown = delay <= 0
        if is_shown:
            shown.enter_context(show)
        for item, item_work in zip(items, chain(work, repeat(0.0)), strict=False):  # more than expected
            now = time.monotonic()
            remaining.add(item_work, now, getattr(item, "ran", True))
            show.advance()
            if not is_shown and now - start >= delay:
                is_shown = True
                shown.enter_context(show)
            yield item


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
        inside = scores["in"]
        validation = mean_score(record, "out", self.trial.train_domains)
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
