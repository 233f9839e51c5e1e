"""Faults on request, so that tests can pull the plug at any point of a real run.

``POGM_FAULT=kill@step:120`` kills the process the 120th time it passes the point ``step``;
``full@write:3`` makes the third write find the disk full.
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
    action, _, place = wanted.partition("@")
    name, _, count = place.partition(":")
    _passed[point] += 1
    if name == point and _passed[point] == int(count or 1):
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
