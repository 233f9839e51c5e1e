"""Standard output and standard error of a command that must not end because nobody can read what it prints."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _ForgivingFile(io.FileIO):
    """File whose write errors are ignored: the disk with the log is full, or the reader of the pipe has ended."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


@contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Drop what cannot be written to standard output and standard error, and escape what cannot be encoded."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = during = tuple(map(_forgiving, before))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in set(during) - set(before):
            stream.close()


def _forgiving(stream: TextIO) -> TextIO:
    """Return a stream that writes to the same file. A stream without a file stays: it is a string in memory."""
    try:
        file = _ForgivingFile(os.dup(stream.fileno()), "w")
    except (AttributeError, OSError, ValueError):
        return stream
    is_unbuffered = getattr(stream, "write_through", False)  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=is_unbuffered or getattr(stream, "line_buffering", True),
    )
