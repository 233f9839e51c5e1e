"""Digest of the records of a run. Every checkpoint manifest and ``done`` contain it, so that a change is noticed.

A manifest contains the digest of the records up to its checkpoint: later ones are written again when the run resumes.
Runs of earlier versions have no digests; their records are not compared with anything.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pogm._system.errors import IntegrityError, UsageError
from pogm._system.files import canonical_json, read_json
from pogm._system.saved import check_form, read_regular

# Names of files in the folder of a run, and of a sweep.
DONE, FAILED, RECORDS, TRIAL = "done", "failed.json", "records.jsonl", "trial.json"
SWEEP = "sweep.json"
MOST_BYTES = 1 << 30  # of the records of a run
FORM = {"bytes": int, "sha256": str}
WITHOUT_DIGEST = (b"done\n", b"done")  # content of ``done`` in earlier versions, and in DomainBed


class RecordDigest:
    """Number of bytes and SHA-256 of the records that a run has written so far."""

    def __init__(self, content: bytes = b""):
        self.bytes, self._hash = len(content), hashlib.sha256(content)

    def add(self, line: bytes) -> None:
        """Add a line that was written."""
        self.bytes += len(line)
        self._hash.update(line)

    def to_json(self) -> dict[str, Any]:
        """Return the digest for a manifest."""
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest()}

    def done(self) -> bytes:
        """Return the content of ``done``."""
        return canonical_json({"records": self.to_json()}).encode() + b"\n"


def check_records(path: Path, content: bytes, stored: Mapping[str, Any]) -> bytes:
    """Return the part of the records that a digest was stored of.

    Raises:
        IntegrityError: They differ from what the run wrote.
    """
    part = content[: stored["bytes"]]
    if RecordDigest(part).to_json() != stored:
        raise IntegrityError(
            f"Expected the records that the run wrote in {path} ({stored['bytes']} bytes with SHA-256 "
            f"{stored['sha256'][:12]}…); found others. Restore the file from a copy, or delete {path.parent} to start "
            "again."
        )
    return part


def read_content(path: Path) -> bytes:
    """Return the content of a file of records; nothing if there is no file."""
    try:
        return read_regular(path, MOST_BYTES)
    except FileNotFoundError:
        return b""


def read_verified(folder: Path) -> tuple[bytes, bool]:
    """Return the content of the records of a run, and True if the run is done.

    Raises:
        IntegrityError: The records differ from what the run wrote.
        UsageError: A file cannot be read.
    """
    path, done = folder / RECORDS, read_done(folder)
    stored = newest_digest(folder) if done is None else done.get("records")  # before the records, which grow
    content = read_content(path)
    if stored:
        known = check_records(path, content, stored)
        if done is not None and len(known) < len(content):
            raise IntegrityError(f"Expected {len(known)} bytes in {path}; found {len(content)}. Something was added.")
    return content, done is not None


def read_done(folder: Path) -> dict[str, Any] | None:
    """Return the content of ``done``: the digest of all records. It is empty for runs of earlier versions.

    Returns:
        None if the run is not done.

    Raises:
        UsageError: The file was not written by this package.
    """
    path = folder / DONE
    try:
        if read_regular(path, 1 << 10) in WITHOUT_DIGEST:
            return {}
    except FileNotFoundError:
        return None
    content = read_json(path)
    try:
        check_form(content, {"records": FORM}, DONE)
    except ValueError as error:
        raise UsageError(f"In {path}: {error} Delete the file, and resume the run.") from error
    found: dict[str, Any] = content
    return found


def newest_digest(folder: Path) -> Mapping[str, Any] | None:
    """Return the digest in the newest manifest that can be read; None if there is none."""
    for path in sorted((folder / "checkpoints").glob("*.json"), reverse=True):
        with suppress(OSError, ValueError):  # damaged; or the run has deleted it meanwhile
            manifest = read_json(path)
            check_form(manifest, {"records?": FORM}, path.name)
            stored: Mapping[str, Any] | None = manifest.get("records")
            return stored
    return None
