"""Download of published files: from the first mirror that works, verified, or an error and no file."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pogm._system.errors import DataError, IntegrityError
from pogm._system.files import TEMPORARY, lock_folder, read_json, readable_json, sync_folder, write_atomic
from pogm.data.sources.catalogue import PublishedFile, hash_file
from pogm.data.sources.transfer import ByteProgress, InterruptedTransferError, RefusedError, transfer

DELAYS = (1.0, 4.0, 15.0)  # seconds before the second, third and fourth attempt at a mirror
TIMEOUT = 30.0  # seconds without a byte


class UnverifiedWarning(UserWarning):
    """A file without a published hash was downloaded."""


def download(
    source: PublishedFile,
    folder: Path,
    *,
    progress: ByteProgress | None = None,
    delays: Sequence[float] = DELAYS,
    timeout: float = TIMEOUT,
) -> Path:
    """Download a file into a folder from the first mirror that has it. A file that exists is only verified.

    An interrupted download is kept as ``<name>.part`` and resumed. The hash of a file without a published one is stored
    in ``<name>.sha256.json`` the first time, and verified from then on.

    Args:
        source: The published file.
        folder: Folder of the downloaded files.
        progress: Called with the number of bytes so far and in total.
        delays: Seconds before each further attempt at a mirror.
        timeout: Seconds without a byte.

    Returns:
        Path of the file.

    Raises:
        DataError: If no mirror works or the disk is full.
        IntegrityError: If an existing file has another hash.
    """
    path = folder / source.name
    part = folder / (source.name + TEMPORARY)
    failures = []
    try:
        if path.exists():
            _check_existing(source, path)
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            for mirror in source.mirrors:
                try:
                    _try_mirror(source, mirror, part, progress, delays, timeout)
                except RefusedError as error:
                    failures.append(f"  {mirror}: {error}")
                else:
                    _keep(source, mirror, part, path)
                    return path
    except OSError as error:
        raise DataError(
            f"Expected to write {path}; found: {error.strerror or error}. "
            "The bytes fetched so far are kept. Free some space or permit writing, then fetch again."
        ) from error
    raise DataError(
        f"Expected {source.name} from one of {len(source.mirrors)} addresses; found:\n"
        + "\n".join(failures)
        + f"\n{manual_steps(source, folder)}"
    )


def manual_steps(source: PublishedFile, folder: Path) -> str:
    """Return instructions to download a file by hand."""
    wanted = _expected_hash(source, folder / source.name)
    of = " of its unpacked content" if source.unpacked else ""
    known = f"its SHA-256{of} is {wanted}" if wanted else "its SHA-256 is not published"
    return (
        f"Get it by hand: open {source.page}, download {source.name} and put it into {folder} under that name "
        f"({known}). Then repeat `pogm data fetch`, which checks it, and go on with `pogm data prepare`."
    )


def _try_mirror(
    source: PublishedFile,
    mirror: str,
    part: Path,
    progress: ByteProgress | None,
    delays: Sequence[float],
    timeout: float,
) -> None:
    """Download into the partial file. Attempts that make progress are repeated without limit, others after `delays`."""
    expected = _expected_hash(source, part.with_name(source.name))
    failed, furthest = 0, _size(part)
    while True:
        try:
            resumed = transfer(
                mirror, part, size=source.size, trust_part=expected is not None, progress=progress, timeout=timeout
            )
            wrong = _find_error(source, part, expected)
            if wrong is None:
                return
            part.unlink()
            # A file made of two responses may be a mixture, so fetch it again in one piece.
            raise (InterruptedTransferError if resumed else RefusedError)(wrong)
        except InterruptedTransferError as error:
            failed = 1 if _size(part) > furthest else failed + 1
            furthest = max(furthest, _size(part))
            if failed > len(delays):
                raise RefusedError(f"{error}; {failed} attempts got no further") from error
            time.sleep(delays[failed - 1])


def _find_error(source: PublishedFile, path: Path, expected: str | None) -> str | None:
    """Return a description of what is wrong with a complete file; None if it is right."""
    if source.size is not None and _size(path) != source.size:
        return f"{_size(path)} bytes, not {source.size}"
    if expected is None or (found := hash_file(path, unpacked=source.unpacked)) == expected:
        return None
    of = "" if source.sha256 else f", which {_note_path(path.with_name(source.name)).name} noted the first time"
    return f"the SHA-256 {found or 'of no gzip file'}, not {expected}{of}"


def _keep(source: PublishedFile, mirror: str, part: Path, path: Path) -> None:
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
    sync_folder(path.parent)
    if _expected_hash(source, path) is None:
        _note_hash(path, mirror)


def _check_existing(source: PublishedFile, path: Path) -> None:
    """Verify a file that exists already. It is never deleted, because it may be the user's."""
    expected = _expected_hash(source, path)
    wrong = _find_error(source, path, expected)
    if wrong is not None:
        raise IntegrityError(f"Expected {path} as it was published; found {wrong}. Move it away and fetch again.")
    if expected is None:
        _note_hash(path, "put there by hand")


def _expected_hash(source: PublishedFile, path: Path) -> str | None:
    """Return the published hash, or the one stored the first time."""
    note = _note_path(path)
    if source.sha256 is None and note.exists():
        known = read_json(note)
        return str(known["sha256"]) if isinstance(known, dict) and "sha256" in known else None
    return source.sha256


def _note_hash(path: Path, origin: str) -> None:
    """Store the hash of a file without a published one, and warn that the content could not be verified."""
    found = hash_file(path)
    write_atomic(_note_path(path), readable_json({"sha256": found, "from": origin}))
    warnings.warn(
        f"Nobody has published a SHA-256 of {path.name}; found {found}. It is noted in {_note_path(path).name}, "
        "and other content will be refused from now on. Delete the note to accept other content.",
        UnverifiedWarning,
        stacklevel=4,
    )


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
