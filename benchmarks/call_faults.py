"""Faults at system calls of drivers and workers, by a hook of Python's audit events.

The fork server of `soak.py` imports this module first. ``POGM_CALL_FAULT="ENOSPC 17 FOLDER"`` makes the 17th call of a
process on a file of the folder fail with this error; ``SIGKILL`` instead of an error kills the process there. Every
fault is noted in ``FOLDER.faults``. The calls are those of `EVENTS`, and the package's own fault points for content
that is written, because Python has no events for them.
"""

import errno
import os
import signal
import sys
from typing import Any

from pogm._system import fault_injection

VARIABLE = "POGM_CALL_FAULT"
POINTS = ("write", "append")
EVENTS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir", "os.truncate", "fcntl.flock"}
EVENTS |= {"os.fsync", *(f"pogm.{point}" for point in POINTS)}
FAULTS = ("SIGKILL", "ENOSPC", "EIO", "EACCES", "EMFILE")

_sync = os.fsync
_passed = 0  # calls of this process


def _fsync(descriptor: int) -> None:
    sys.audit("os.fsync", descriptor)
    _sync(descriptor)


def _fault_point(point: str) -> None:
    if point in POINTS:
        sys.audit(f"pogm.{point}", 0)


def _inject(event: str, args: tuple[Any, ...]) -> None:
    global _passed
    if event not in EVENTS or VARIABLE not in os.environ:
        return
    fault, number, folder = os.environ[VARIABLE].split(" ", 2)
    path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
    if not (path.startswith(f"{folder}/") or isinstance(args[0], int)):  # descriptors are those of such files
        return
    _passed += 1
    if _passed == int(number):
        note = f"{fault} {event} {path.removeprefix(folder)}\n".encode()
        file = os.open(f"{folder}.faults", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, note)
        os.close(file)
        if fault == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, fault)
        raise OSError(code, os.strerror(code), path or None)


os.fsync = _fsync
fault_injection.fault_point = _fault_point  # before other modules import it
sys.addaudithook(_inject)
