"""What can go wrong, by exit code. Every message says what was expected, what was found, what to do."""

import difflib
from collections.abc import Iterable


class PogmError(Exception):
    """An error for the user to read, not a bug: the command line prints it without a traceback."""

    exit_code = 1


class UsageError(PogmError, ValueError):
    """A name, value or combination that cannot be meant."""

    exit_code = 2


class InUseError(UsageError):
    """A folder that another process owns."""


class DataError(PogmError):
    """Data that is missing or not what its format says."""

    exit_code = 3


class DivergedError(PogmError):
    """Training left the finite numbers."""

    exit_code = 4


class MemoryLimitError(PogmError):
    """A run that does not fit into memory."""

    exit_code = 5


class IntegrityError(PogmError):
    """A file that is not what its manifest says."""

    exit_code = 6


class StoppedError(PogmError):
    """Stopped on request after a checkpoint; resume goes on from there."""

    def __init__(self, message: str, exit_code: int = 75):
        super().__init__(message)
        self.exit_code = exit_code


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name nobody knows, with the nearest one that somebody does."""
    known = sorted(known)
    by_folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(str(name).casefold(), by_folded, n=1, cutoff=0.5)
    hint = f"Did you mean {by_folded[near[0]]!r}?" if near else "Choose one of those." if known else "Leave it out."
    return UsageError(f"Expected {kind} out of {', '.join(known) or 'none'}; found {name!r}. {hint}")
