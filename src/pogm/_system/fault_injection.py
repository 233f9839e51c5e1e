"""Faults on request, so that tests can pull the plug at any point of a real run.

``POGM_FAULT=kill@step:120`` sends the process SIGKILL the 120th time it passes the point ``step`` (``term`` and
``int`` send theirs); ``full@write:3`` makes the third write find the disk full. Commas separate several.
"""

import errno
import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def fault_point(point: str) -> None:
    """Do here what the environment asks for."""
    wanted = os.environ.get("POGM_FAULT")
    if not wanted:
        return
    _passed[point] += 1
    for fault in wanted.split(","):
        action, _, place = fault.partition("@")
        if place != f"{point}:{_passed[point]}":
            continue
        if action == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.Signals[f"SIG{action.upper()}"])
