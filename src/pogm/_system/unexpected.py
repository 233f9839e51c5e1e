"""Errors that nobody expected: one paragraph on the terminal, and the traceback in a file."""

import os
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from pogm._system.terminal import print_line

EXIT_CODE = 70
PACKAGE = str(Path(__file__).parents[1]) + os.sep
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))


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
    """Return the last position in this package, or in a file of the user, such as " in report/page.py, line 85"."""
    return find_position([(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)])


def find_position(frames: Sequence[tuple[str, int]]) -> str:
    """Return the position that explains an error, given the files and lines of its traceback; empty if there is none.

    It is the last one in a file that this package called and that is not installed, such as a plug-in in the current
    folder; without such a file, the last one in this package.
    """
    called = frames[next((n for n, (file, _) in enumerate(frames) if file.startswith(PACKAGE)), len(frames)) :]
    own = [(file, line) for file, line in called if not file.startswith((PACKAGE, "<", *INSTALLED))]
    if own:
        return f" in {own[-1][0]}, line {own[-1][1]}"
    inside = [(file, line) for file, line in called if file.startswith(PACKAGE)]
    return f" in {inside[-1][0].removeprefix(PACKAGE)}, line {inside[-1][1]}" if inside else ""


def find_position_in_text(text: str) -> str:
    """Return `find_position` for a traceback as text."""
    return find_position([(file, int(line)) for file, line in re.findall(r'^  File "(.+?)", line (\d+)', text, re.M)])
