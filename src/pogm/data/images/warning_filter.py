"""No warnings from decoders: a photograph with an odd tag is no news, whatever the process does with warnings."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_held = warnings.catch_warnings()


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings while the block runs, in however many threads at once.

    ``warnings.catch_warnings`` alone is not for threads: two that overlap may restore each other's filters. Here the
    first one in changes them and the last one out restores them.
    """
    global _inside, _held
    with _lock:
        if _inside == 0:
            _held = warnings.catch_warnings()
            _held.__enter__()
            warnings.simplefilter("ignore")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _held.__exit__(None, None, None)
