"""Getting a published file: from the first mirror that has it, whole and checked, or not at all."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pogm._system.errors import DataError, IntegrityError
from pogm._system.files import TEMPORARY, locked, read_json, readable_json, sync_folder, write_whole
from pogm.data.sources.source import Source, hash_of
from pogm.data.sources.transfer import InterruptedTransferError, Progress, RefusedError, transfer

DELAYS = (1.0, 4.0, 15.0)  # seconds before the second, third and fourth attempt at a mirror
TIMEOUT = 30.0  # seconds without a byte


class UnverifiedWarning(UserWarning):
    """A file whose content nobody has published a hash of."""


def download(
    source: Source,
    folder: Path,
    *,
    progress: Progress | None = None,
    delays: Sequence[float] = DELAYS,
    timeout: float = TIMEOUT,
) -> Path:
    """The file in the folder: checked if it is there, otherwise fetched from the first mirror that has it.

    What a cut connection left is kept as ``<name>.part`` and added to. A file without a published hash is remembered
    by the one it had the first time, in ``<name>.sha256.json``.
    """
    path = folder / source.name
    part = folder / (source.name + TEMPORARY)
    said = []
    try:
        if path.exists():
            _check_present(source, path)
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            for mirror in source.mirrors:
                try:
                    _try_mirror(source, mirror, part, progress, delays, timeout)
                except RefusedError as error:
                    said.append(f"  {mirror}: {error}")
                else:
                    _keep(source, mirror, part, path)
                    return path
    except OSError as error:
        raise DataError(
            f"Expected to write {path}; found: {error.strerror or error}. "
            "What was fetched so far is kept; free some space or permit writing, then fetch again."
        ) from error
    raise DataError(
        f"Expected {source.name} from one of {len(source.mirrors)} addresses; found:\n"
        + "\n".join(said)
        + f"\n{by_hand(source, folder)}"
    )


def by_hand(source: Source, folder: Path) -> str:
    """What to do where no mirror works."""
    wanted = _expected(source, folder / source.name)
    of = " of its unpacked content" if source.unpacked else ""
    known = f"its SHA-256{of} is {wanted}" if wanted else "nobody has published its SHA-256"
    return (
        f"Get it by hand: open {source.page}, download {source.name} and put it into {folder} under that name "
        f"({known}). Then repeat `pogm data fetch`, which checks it, and go on with `pogm data prepare`."
    )


def _try_mirror(
    source: Source, mirror: str, part: Path, progress: Progress | None, delays: Sequence[float], timeout: float
) -> None:
    """Fetch into the part, and again while that may help: after an attempt that got further, as often as it takes."""
    expected = _expected(source, part.with_name(source.name))
    failed, furthest = 0, _size(part)
    while True:
        try:
            resumed = transfer(
                mirror, part, size=source.size, trusting=expected is not None, progress=progress, timeout=timeout
            )
            wrong = _wrong(source, part, expected)
            if wrong is None:
                return
            part.unlink()
            # What was put together from two answers deserves to be fetched in one piece.
            raise (InterruptedTransferError if resumed else RefusedError)(wrong)
        except InterruptedTransferError as error:
            failed = 1 if _size(part) > furthest else failed + 1
            furthest = max(furthest, _size(part))
            if failed > len(delays):
                raise RefusedError(f"{error}; {failed} attempts got no further") from error
            time.sleep(delays[failed - 1])


def _wrong(source: Source, path: Path, expected: str | None) -> str | None:
    """What is wrong with a complete file, if anything is."""
    if source.size is not None and _size(path) != source.size:
        return f"{_size(path)} bytes, not {source.size}"
    if expected is None or (found := hash_of(path, unpacked=source.unpacked)) == expected:
        return None
    of = "" if source.sha256 else f", which {_memory(path.with_name(source.name)).name} noted the first time"
    return f"the SHA-256 {found or 'of no gzip file'}, not {expected}{of}"


def _keep(source: Source, mirror: str, part: Path, path: Path) -> None:
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
    sync_folder(path.parent)
    if _expected(source, path) is None:
        _remember(path, mirror)


def _check_present(source: Source, path: Path) -> None:
    """A file that is there already, from an earlier time or by hand; it is the user's, and stays."""
    expected = _expected(source, path)
    wrong = _wrong(source, path, expected)
    if wrong is not None:
        raise IntegrityError(f"Expected {path} as it was published; found {wrong}. Move it away and fetch again.")
    if expected is None:
        _remember(path, "put there by hand")


def _expected(source: Source, path: Path) -> str | None:
    """The hash its authors published, or the one it had the first time."""
    memory = _memory(path)
    if source.sha256 is None and memory.exists():
        known = read_json(memory)
        return str(known["sha256"]) if isinstance(known, dict) and "sha256" in known else None
    return source.sha256


def _remember(path: Path, origin: str) -> None:
    """Say once that the content could not be checked, and note its hash for the next time."""
    found = hash_of(path)
    write_whole(_memory(path), readable_json({"sha256": found, "from": origin}))
    warnings.warn(
        f"Nobody has published a SHA-256 of {path.name}; found {found}. It is noted in {_memory(path).name}, "
        "and other content will be refused from now on; delete the note to accept some.",
        UnverifiedWarning,
        stacklevel=4,
    )


def _memory(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
