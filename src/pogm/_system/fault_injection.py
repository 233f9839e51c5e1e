"""Fault injection for tests: signals and full disks at a chosen point of a real run.

``POGM_FAULT=kill@step:120`` sends SIGKILL to the process when it passes the point ``step`` for the 120th time. ``term``
and ``int`` send SIGTERM and SIGINT. ``full@write:3`` makes the third write fail as if the disk were full. Separate
several faults by commas.
"""

import errno
import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()  # how often each point was passed


def fault_point(point: str) -> None:
    """Inject the fault that the environment variable POGM_FAULT asks for at this point, if any."""
    requested = os.environ.get("POGM_FAULT")
    if not requested:
        return
    _passed[point] += 1
    for fault in requested.split(","):
        action, _, position = fault.partition("@")
        if position != f"{point}:{_passed[point]}":
            continue
        if action == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.Signals[f"SIG{action.upper()}"])
