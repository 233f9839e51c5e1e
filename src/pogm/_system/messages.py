"""Messages on standard error that are no results: notes, which ``--quiet`` leaves out, and the log of ``--verbose``.

Modules log what they do, and how long it took, to `log`. As in any library, nothing is printed unless a program asks
for it; the command line does with ``--verbose``.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pogm._system.terminal import print_line

log = logging.getLogger("pogm")
_quiet = False


def note(text: object) -> None:
    """Print a line on standard error that is neither a result nor a warning, unless ``--quiet`` is given."""
    if not _quiet:
        print_line(text, file=sys.stderr)


def suggest(commands: Iterable[str]) -> None:
    """Print commands to continue with as notes: the first after "Next:", the others after "Or:"."""
    for number, command in enumerate(commands):
        note(f"{'Or' if number else 'Next'}: {command}")


def is_quiet() -> bool:
    """Return True if notes and progress are not shown."""
    return _quiet


@contextmanager
def log_time(what: str, *values: object) -> Iterator[None]:
    """Log what the block does, and its time, when it ends without an error."""
    start = time.monotonic()
    yield
    log.info(f"{what}: %.2f s", *values, time.monotonic() - start)


class _Lines(logging.Handler):
    """Handler that prints each message as one line on standard error, with the time since its start."""

    def __init__(self) -> None:
        super().__init__()
        self.start = time.time()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message; it may contain names from files, whose control characters are escaped."""
        print_line(f"[{record.created - self.start:8.2f} s] {record.getMessage()}", file=sys.stderr)


@contextmanager
def set_verbosity(*, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Show no notes and no progress, or also the log, while the block runs."""
    global _quiet
    before, level, handler = _quiet, log.level, _Lines()
    _quiet = quiet
    if verbose:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _quiet = before
        log.removeHandler(handler)
        log.setLevel(level)
