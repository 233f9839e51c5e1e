"""Errors and their exit codes. Every message says what was expected, what was found and what to do."""

import difflib
import errno
from collections.abc import Iterable

FINDINGS = 7  # exit code of a check that read its input and found faults in it; not an error


class Lines:
    """Mixin of an error or a warning whose message has one or several lines, one for each argument."""

    args: tuple[object, ...]

    @property
    def lines(self) -> tuple[object, ...]:
        """Lines of the message. A newline within one of them comes from a name, and is escaped on the terminal."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


class PogmError(Lines, Exception):
    """Base class of errors that are not bugs. The command line prints the message without a traceback."""

    exit_code = 1


class UsageError(PogmError, ValueError):
    """Invalid name, value or combination of options."""

    exit_code = 2


class InUseError(UsageError):
    """Folder that another process has locked."""


class DataError(PogmError):
    """Missing data, or data with a wrong format."""

    exit_code = 3


class DiskFullError(DataError):
    """Run, or sweep, that stopped because the disk is full. It can be resumed when there is space."""


class DivergedError(PogmError):
    """Training with weights, losses or trajectories that are not finite."""

    exit_code = 4


class MemoryLimitError(PogmError):
    """Run that does not fit into memory."""

    exit_code = 5


class IntegrityError(PogmError):
    """File that differs from its manifest."""

    exit_code = 6


class StoppedError(PogmError):
    """Run that was stopped on request, after it wrote a checkpoint. It can be resumed."""

    def __init__(self, message: str, exit_code: int = 75):
        super().__init__(message)
        self.exit_code = exit_code


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if a full disk, or an exhausted quota, is the reason of an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def file_error_text(error: OSError) -> str:
    """Return the message of an error of the file system that nothing else explains."""
    return f"Expected to read and write files; found: {error}. Check that path and its disk."


def shorten(value: object) -> str:
    """Return the value as Python writes it, for a message; the middle of a long text is left out."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:50]}...{text[-10:]} ({len(text)} characters)"


LISTED = 20  # most names that a message lists if one of them is similar to the unknown name


def unknown_name_error(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name. Its message suggests the most similar one.

    It lists the known names, unless they are many and one of them is similar.
    """
    known = sorted(known)
    by_folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(str(name).casefold(), by_folded, n=1, cutoff=0.5)
    hint = f"Did you mean {by_folded[near[0]]!r}?" if near else "Choose one of those." if known else "Leave it out."
    listed = f"{kind} (one of {len(known)})" if near and len(known) > LISTED else None
    expected = listed or f"{kind} out of {', '.join(known) or 'none'}"
    return UsageError(f"Expected {expected}; found {shorten(name)}. {hint}")
