"""Files that are there whole or not at all."""

import fcntl
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pogm._system.errors import DataError, InUseError, UsageError
from pogm._system.fault_injection import fault_point

TEMPORARY = ".part"
LOCK = "lock"
TRIES = 10  # to lock a folder: whoever looks whether it is locked (`is_locked`) holds it for an instant
LOOK_SECONDS = 0.01


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one, or none, and never half of the new one."""
    part = path.with_name(path.name + TEMPORARY)
    try:
        path.parent.mkdir(exist_ok=True)
        with open(part, "wb") as file:
            fault_point("write")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fault_point("replace")
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise DataError(
            f"Expected to write {len(content)} bytes to {path}; found: {error.strerror or error}. "
            "What was there before is intact; free some space or permit writing, then resume."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Clear what a killed process left half-written."""
    for part in folder.glob(f"*{TEMPORARY}"):
        part.unlink(missing_ok=True)


def is_empty(folder: Path) -> bool:
    """Whether nobody has written to the folder; a lock, and what a killed process left half-written, do not count."""
    return all(path.name == LOCK or path.suffix == TEMPORARY for path in folder.iterdir())


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: Any) -> str:
    """One text for one value, whatever order its keys came in."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def readable_json(value: Any) -> bytes:
    """The same for a file that people open."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n"


def read_json(path: Path, limit: int = 1 << 20) -> Any:
    """A small JSON file of ours; refuses repeated fields, NaN, other encodings and absurd sizes."""
    size = path.stat().st_size
    if size > limit:
        raise UsageError(f"Expected at most {limit} bytes in {path}; found {size}. It is not a file of ours.")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Expected UTF-8 text in {path}; found {error.reason} at byte {error.start}. It is not a file of ours."
        ) from error

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in pairs:
            if name in seen:
                lines = [text[: found.start()].count("\n") + 1 for found in re.finditer(_key(name), text)]
                where = f" (lines {', '.join(map(str, lines))})" if lines else ""
                raise UsageError(f"Expected each field of {path} once; found {name!r} twice{where}. Remove one.")
            seen[name] = value
        return seen

    def refuse(literal: str) -> NoReturn:
        raise UsageError(f"Expected JSON in {path}; found {literal}, which JSON does not have. Write a number.")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except UsageError:
        raise
    except json.JSONDecodeError as error:
        raise UsageError(
            f"Expected JSON in {path}; found an error at line {error.lineno}: {error.msg}. Undo what changed it."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; a thousand brackets
        raise UsageError(f"Expected JSON in {path}; found: {error}. It is not a file of ours.") from error


def _key(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own a folder while the block runs. The lock of a process that died is free by itself."""
    with open(folder / LOCK, "ab+", buffering=0) as file:
        for tries_left in reversed(range(TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if tries_left:
                    time.sleep(LOOK_SECONDS)
                    continue
                file.seek(0)
                owner = file.read(1000).decode(errors="replace").strip() or "another process"
                raise InUseError(
                    f"Expected to be alone in {folder}; found it in use by {owner}. "
                    "Wait for it, or choose another folder."
                ) from error
        with suppress(OSError):  # on a full disk the lock holds without the name of its owner
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def is_locked(folder: Path) -> bool:
    """Whether some living process owns the folder."""
    if not (folder / LOCK).exists():
        return False
    with open(folder / LOCK, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
