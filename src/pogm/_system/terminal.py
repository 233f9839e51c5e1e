"""Text for the terminal: names from files and other people cannot move the cursor, forge lines or end a command."""

import os
import stat
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast


def printable(name: object) -> str:
    """Return a name on one line: control characters, newlines and broken characters are escaped."""
    text = str(name)
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(char: str) -> str:
    return char if char.isprintable() or unicodedata.category(char) == "Zs" else ascii(char)[1:-1]


def print_line(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print one line, by default on standard output. A newline in a name does not start another line."""
    print(printable(text), file=file, flush=flush)


def message_text(message: Exception) -> str:
    """Return the message of an error or a warning. Only a message that has several lines on purpose has newlines."""
    return "\n".join(map(printable, getattr(message, "lines", (message,))))


class WarningPrinter:
    """Function that prints each warning once, as one paragraph without a line of code, for ``warnings.showwarning``.

    Python alone would print a warning again after every ``warnings.catch_warnings``.

    Args:
        printed: Texts of warnings that another process has printed.
    """

    def __init__(self, printed: Iterable[str] = ()):
        self.printed = set(printed)

    def __call__(self, message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        """Print a warning if it is new."""
        text = f"pogm: {category.__name__}: {message_text(message)}"
        if text not in self.printed:
            self.printed.add(text)
            print(text, file=sys.stderr)


def printed_warnings() -> frozenset[str]:
    """Return the texts of the warnings that this process has printed."""
    return frozenset(getattr(warnings.showwarning, "printed", ()))


class EscapedStream:
    """A stream that escapes control characters in everything that is printed, except newlines and tabs.

    The progress bars of rich need control characters: rich writes to ``rich_proxied_file`` of a stream that has it.
    """

    def __init__(self, stream: TextIO):
        self.rich_proxied_file: TextIO = getattr(stream, "rich_proxied_file", stream)
        self.stream = stream

    def write(self, text: str) -> int:
        """Write escaped text."""
        if not text.isprintable():
            text = "".join(char if char in "\n\t" else _escape(char) for char in text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def leave_closed_terminal(descriptors: Sequence[int] = (1, 2)) -> None:
    """Discard what is printed from now on if the terminal was closed: every write to it would be an error."""
    for descriptor in descriptors:
        is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
        if is_device and not os.isatty(descriptor):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def escape_output() -> None:
    """Escape control characters in everything that is printed from now on; what cannot be encoded is escaped, too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, EscapedStream(stream)))


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in everything that is printed while the block runs."""
    before = sys.stdout, sys.stderr
    escape_output()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
