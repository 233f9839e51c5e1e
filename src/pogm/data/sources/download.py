"""Download of published files: from the first mirror that works, verified, or an error and no file."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pogm._system.errors import DataError, IntegrityError
from pogm._system.files import TEMPORARY, lock_folder, sync_folder
from pogm.data.sources.archives import has_signature
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

    An interrupted download is kept as ``<name>.part`` and resumed. A file without a published hash gives a warning each
    time, because nothing shows that its content is the published one.

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
                    _keep(source, part, path)
                    return path
    except OSError as error:
        raise DataError(
            f"Expected to write {path}; found: {error.strerror or error}. "
            "The bytes fetched so far are kept. Free some space or permit writing, then fetch again."
        ) from error
    raise DataError(
        f"Expected {source.name} from one of {len(source.mirrors)} addresses; found:",
        *failures,
        manual_steps(source, folder),
    )


def manual_steps(source: PublishedFile, folder: Path) -> str:
    """Return instructions to download a file by hand."""
    of = " of its unpacked content" if source.unpacked else ""
    known = f"its SHA-256{of} is {source.sha256}" if source.sha256 else "its SHA-256 is not published"
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
    failed, furthest = 0, _size(part)
    while True:
        try:
            resumed = transfer(
                mirror,
                part,
                size=source.size,
                trust_part=source.sha256 is not None,
                progress=progress,
                timeout=timeout,
            )
            wrong = _find_error(source, part)
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


def _find_error(source: PublishedFile, path: Path) -> str | None:
    """Return a description of what is wrong with a complete file; None if nothing is known to be wrong."""
    if source.size is not None and _size(path) != source.size:
        return f"{_size(path)} bytes, not {source.size}"
    if source.sha256 is not None:
        found = hash_file(path, unpacked=source.unpacked)
        return None if found == source.sha256 else f"the SHA-256 {found or 'of no gzip file'}, not {source.sha256}"
    return None if has_signature(path, source.name) else "a file that does not begin like an archive"


def _keep(source: PublishedFile, part: Path, path: Path) -> None:
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
    sync_folder(path.parent)
    if source.sha256 is None:
        _warn_unverified(path)


def _check_existing(source: PublishedFile, path: Path) -> None:
    """Verify a file that exists already. It is never deleted, because it may be the user's."""
    wrong = _find_error(source, path)
    if wrong is not None:
        raise IntegrityError(f"Expected {path} as it was published; found {wrong}. Move it away and fetch again.")
    if source.sha256 is None:
        _warn_unverified(path)


def _warn_unverified(path: Path) -> None:
    warnings.warn(
        f"Expected a published SHA-256 of {path.name}, to verify it; found none. The SHA-256 of this file is "
        f"{hash_file(path)}. Compare it with that of a copy that you trust.",
        UnverifiedWarning,
        stacklevel=4,
    )


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
