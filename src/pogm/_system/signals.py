"""Ctrl-C and SIGHUP while nothing is trained: one line, and exit code 130 or 129."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pogm._system.terminal import leave_closed_terminal

STOPPED = "pogm: Stopped. The same command continues from here."
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class HangupError(KeyboardInterrupt):
    """SIGHUP: the terminal was closed."""


def is_ignored(number: int) -> bool:
    """Return True if this process was started with the signal ignored, such as SIGHUP by ``nohup``."""
    return signal.getsignal(number) is signal.SIG_IGN


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, or `HangupError` for SIGHUP.

    While a module is imported, the process ends at once. Packages catch exceptions in their imports, so an exception
    could be lost or become another one; and there is nothing to save.
    """
    if number == signal.SIGHUP:
        leave_closed_terminal()
    while frame is not None:
        if frame.f_code.co_filename == IMPORT_SYSTEM:
            os.write(2, f"{STOPPED}\n".encode())
            os._exit(128 + number)
        frame = frame.f_back
    raise HangupError if number == signal.SIGHUP else KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle Ctrl-C and SIGHUP by `interrupt` while the block runs, unless they are ignored."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGINT, signal.SIGHUP) if in_main_thread and not is_ignored(number)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
