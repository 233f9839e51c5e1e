"""Atomic files, locks on folders, and strict JSON."""

import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pogm._system.errors import DataError, IntegrityError, InUseError, UsageError
from pogm._system.fault_injection import fault_point
from pogm._system.saved import parse_int, read_regular

TEMPORARY = ".part"
LOCK = "lock"
ATTEMPTS = 10  # to lock a folder: `is_locked` of another process holds the lock for an instant
RETRY_SECONDS = 0.01


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash, either the old file or the new one exists, never a part of it.

    The temporary file of a killed process is deleted, and so is a link in its place. The new one is created
    exclusively, so nothing outside the folder is ever written.

    Raises:
        DataError: The file could not be written, for example because the disk is full.
    """
    part = path.with_name(path.name + TEMPORARY)
    try:
        path.parent.mkdir(exist_ok=True)
        part.unlink(missing_ok=True)
        with open(part, "xb") as file:  # never follows a link
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
            "An existing file is unchanged. Free some space or allow writing, then resume."
        ) from error


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Delete the temporary files that a killed process left."""
    for part in folder.glob(f"*{TEMPORARY}"):
        part.unlink(missing_ok=True)


def is_empty(folder: Path) -> bool:
    """Return True if the folder holds no files other than a lock and temporary files."""
    return all(path.name == LOCK or path.suffix == TEMPORARY for path in folder.iterdir())


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: Any) -> str:
    """Return JSON without spaces and with sorted keys: equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def readable_json(value: Any) -> bytes:
    """Return indented JSON with sorted keys, for files that people read."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n"


def read_json(path: Path, limit: int = 1 << 20) -> Any:
    """Read a small JSON file that this package wrote.

    Raises:
        UsageError: It is not a regular file, exceeds ``limit`` bytes or is not UTF-8, a field is repeated, or a number
            is not finite.
    """
    content = read_regular(path, limit)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Expected UTF-8 text in {path}; found {error.reason} at byte {error.start}. This package did not write it."
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
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_int=parse_int)
    except UsageError:
        raise
    except json.JSONDecodeError as error:
        raise UsageError(
            f"Expected JSON in {path}; found an error at line {error.lineno}: {error.msg}. Undo the change."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of 30 digits; a thousand brackets
        raise UsageError(f"Expected JSON in {path}; found: {error}. This package did not write it.") from error


def _key(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:"


def open_own_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a folder that someone else may have made; use it as the ``opener`` of `open`.

    A symbolic link would lead to a file elsewhere, and so may a file with a second name (a hard link). A FIFO or a
    device would block.

    Raises:
        IntegrityError: The path is a link, has a second name, or is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if not os.path.islink(path):
            raise
        raise _not_own_file(path, "a symbolic link") from error
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    is_file = stat.S_ISREG(found.st_mode)
    raise _not_own_file(path, "a file with a second name (a hard link)" if is_file else "no regular file")


def _not_own_file(path: str | os.PathLike[str], found: str) -> IntegrityError:
    return IntegrityError(f"Expected a regular file at {os.fspath(path)}; found {found}. Delete it, then start again.")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder while the block runs. The system releases the lock when the process dies.

    Raises:
        InUseError: Another process has locked the folder.
        IntegrityError: Something else has the name of the lock file.
    """
    with open(folder / LOCK, "ab+", buffering=0, opener=open_own_file) as file:
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if attempts_left:
                    time.sleep(RETRY_SECONDS)
                    continue
                file.seek(0)
                owner = file.read(1000).decode(errors="replace").strip() or "another process"
                raise InUseError(
                    f"Expected to lock {folder}; found it in use by {owner}. Wait for it, or choose another folder."
                ) from error
        with suppress(OSError):  # on a full disk the lock holds, without the name of its owner
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def is_locked(folder: Path) -> bool:
    """Return True if a process has locked the folder."""
    try:
        file = open(folder / LOCK, "rb", opener=open_own_file)  # noqa: SIM115 - closed below
    except (FileNotFoundError, NotADirectoryError, IntegrityError):  # what is not a lock file locks nothing
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
