"""Parallel map over many files, with progress. Threads are enough: Pillow and hashlib release the GIL."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from pogm._system.cpu import count_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 256  # results that may wait for the caller, so that the threads continue while it writes


class Progress(Protocol):
    """Function that shows the progress of a job. It receives the items and their number, and passes the items on.

    The items arrive one by one, as soon as they are done, but not evenly: after a slow item several arrive at once. The
    number counts only the items that need work, so the remaining time is elapsed / done * (total - done), where items
    count by their work.
    """

    def __call__(
        self, items: Iterable[Item], total: int, /, what: str = "images", work: Sequence[float] = ()
    ) -> Iterable[Item]:
        """Return the same items.

        Args:
            items: The items.
            total: Their number.
            what: A word for them.
            work: Relative time that each of them takes; empty if all take equally long.
        """


def no_progress(
    items: Iterable[Item], total: int, /, what: str = "images", work: Sequence[float] = ()
) -> Iterable[Item]:
    """Return the items and show nothing."""
    return items


def map_in_order(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Apply a function to all items on all cores, and yield the results in the order of the items.

    At most `AHEAD` results are computed ahead of the caller, so memory does not grow with the number of items.
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(count_cores())
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
