"""Where what is computed once is kept."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pogm._system.errors import DataError, UsageError
from pogm._system.files import locked

PLACE = "POGM_CACHE"
PAUSE = 0.2  # seconds between two looks at a folder that another process owns


def cache_folder() -> Path:
    """$POGM_CACHE, or ``~/.cache/pogm``."""
    return Path(os.environ.get(PLACE) or Path.home() / ".cache" / "pogm")


def make_folder(folder: Path) -> None:
    """Make a folder in the cache, and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_allowed(f"make the folder {folder}", error) from error


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder and own it while the block runs, after whoever owns it now."""
    make_folder(folder)
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(folder))
                break
            except UsageError:
                time.sleep(PAUSE)
            except OSError as error:
                raise _not_allowed(f"write to the folder {folder}", error) from error
        yield


def _not_allowed(what: str, error: OSError) -> DataError:
    return DataError(
        f"Expected to {what}; found: {error.strerror}. Permit writing there, or set {PLACE} to another folder."
    )
