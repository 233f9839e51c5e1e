"""Pause of the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Do not search for unreachable cycles while the block (or the decorated function) runs.

    For code that creates many objects and no cycles, such as the records of a large folder. The collector would visit
    all of them again and again, which takes longer than to create them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
