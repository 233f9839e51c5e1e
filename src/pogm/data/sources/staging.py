"""Folders that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pogm._system.errors import DataError
from pogm._system.fault_injection import fault_point
from pogm._system.files import TEMPORARY, locked, sync_folder


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder to fill, which gets the target's name when the block ends well and vanishes when it does not."""
    staging = target.with_name(f".{target.name}{TEMPORARY}")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with locked(staging):
            made = staging / "made"
            if made.exists():  # by a process that was killed
                shutil.rmtree(made)
            made.mkdir()
            try:
                yield made
                fault_point("replace")
                os.replace(made, target)
                sync_folder(target.parent)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"Expected to make {target}; found: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}. "
            "Nothing was kept; free some space or permit writing, then try again."
        ) from error
