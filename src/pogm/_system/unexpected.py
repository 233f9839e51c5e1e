"""Errors that nobody expected: one paragraph on the terminal, and the traceback in a file."""

import os
import sys
import tempfile
import traceback
from pathlib import Path

from pogm._system.terminal import print_line

EXIT_CODE = 70
PACKAGE = str(Path(__file__).parents[1]) + os.sep


def report_unexpected(error: BaseException, activity: str) -> None:
    """Print what was being done and where the traceback was saved, on standard error.

    Args:
        error: The error.
        activity: What was being done, such as "rendering the page".
    """
    text = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="pogm-error-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"While {activity}:\n\n{text}")
        saved = f"The traceback is in {path}"
    except OSError as failure:
        saved = f"The traceback cannot be saved ({failure.strerror}): {text}"
    print_line(
        f"pogm: Expected to finish {activity}; found an unexpected error{_position(error)}: "
        f"{type(error).__name__}: {error}. This is a bug of pogm or of a plug-in. {saved}",
        file=sys.stderr,
    )


def _position(error: BaseException) -> str:
    """Return the last position in this package, such as " in report/page.py, line 85"."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    return f" in {frames[-1].filename.removeprefix(PACKAGE)}, line {frames[-1].lineno}" if frames else ""
