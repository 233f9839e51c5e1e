"""How far a job is and how long it will take: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")
LINE_SECONDS = 5.0  # between plain lines


def tracked(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Pass the items through and show how many have come."""
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
    began = last = time.monotonic()
    for count, item in enumerate(items, 1):
        now = time.monotonic()
        if now - last >= LINE_SECONDS or count == total:
            left = (now - began) / count * (total - count)
            print(
                f"{what}: {count}/{total}, {now - began:.0f} s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
            last = now
        yield item
