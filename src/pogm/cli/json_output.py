"""``--json``: the result of a command as one JSON document, on standard output or in a file.

A command that prints a result has a field ``output: Output = group(Output)`` and calls ``output.show``.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TextIO, cast

from pogm._system.errors import UsageError
from pogm._system.files import readable_json, write_atomic
from pogm._system.terminal import EscapedStream
from pogm.cli.parser import Command, option

STDOUT = Path("-")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """Form of the result."""

    title: ClassVar[str] = "result"
    json: Path | None = option(
        "Print the result as one JSON document instead of text; other text goes to standard error. With FILE, write "
        "the document to the file, beside the text (default: text only).",
        None,
        metavar="FILE",
        alone=STDOUT,
    )

    @property
    def replaces_text(self) -> bool:
        """True if the document is printed instead of the text."""
        return self.json == STDOUT

    def show(self, command: str, document: Mapping[str, Any], text: Callable[[], object] = lambda: None) -> None:
        """Print the text or the document, and write the file if there is one.

        Args:
            command: Words of the command, such as "data check"; the entry ``command`` of the document.
            document: The result. Paths, tuples and numbers that are not finite are converted.
            text: Function that prints the result as text.
        """
        if not self.replaces_text:
            text()
        if self.json is None:
            return
        content = readable_json(to_json({"command": command, **document}))
        if self.replaces_text:
            stream = getattr(sys.stdout, "document_stream", sys.stdout)
            stream.write(content.decode())
            stream.flush()
        else:
            write_atomic(self.json, content)


def to_json(value: Any) -> Any:
    """Return a value as JSON values: paths as texts, tuples as lists, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_asked_for(command: Command) -> bool:
    """Return True if a command prints a JSON document instead of text.

    Raises:
        UsageError: The file of ``--json`` is a folder: probably an argument that follows the option.
    """
    output = getattr(command, "output", None)
    if not isinstance(output, Output):
        return False
    if output.json is not None and output.json.is_dir():
        raise UsageError(
            f"Expected a file for --json; found the folder {output.json}. Write --json at the end of the command."
        )
    return output.replaces_text


@contextmanager
def text_to_stderr() -> Iterator[None]:
    """Print on standard error what goes to standard output while the block runs, except the document."""
    before = sys.stdout
    stream = EscapedStream(sys.stderr)
    vars(stream)["document_stream"] = before
    sys.stdout = cast(TextIO, stream)
    try:
        yield
    finally:
        sys.stdout = before
