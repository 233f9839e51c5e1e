"""The same work on many files, by all cores. Threads do: Pillow and hashlib let go of the interpreter."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 256  # results that may wait for the caller, so that threads go on while it writes


class Progress(Protocol):
    """What shows how far a job is: gets the items and how many there will be, passes them on."""

    def __call__(self, items: Iterable[Item], total: int, /) -> Iterable[Item]:
        """The same items."""


def unseen(items: Iterable[Item], total: int, /) -> Iterable[Item]:
    """The progress that shows nothing."""
    return items


def in_order(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The result of each item, in order; few are computed ahead, so that memory does not grow with the folder."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
