"""Reading of saved files: only regular files of limited size, and only values of the expected form."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError

LARGEST = 1e100  # sums and squares of larger numbers overflow; no measurement has them
DIGITS = 25  # of an integer; seeds have up to 20

Form = type | tuple[type, ...] | list[Any] | dict[Any, Any]


def read_regular(path: Path, limit: int) -> bytes:
    """Read a file that someone else may have put there. A FIFO or a device would block or never end.

    Raises:
        FileNotFoundError: There is no file.
        UsageError: It is not a regular file, or it has more than ``limit`` bytes.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened, which can have an effect on a device
        raise UsageError(f"Expected a regular file at {path}; found a folder, FIFO or device. Remove it.")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UsageError(f"Expected at most {limit} bytes in {path}; found {size}. This package did not write it.")
        return file.readall()


def parse_int(text: str) -> int:
    """Parse an integer of JSON. Larger ones cannot be converted to a float.

    Raises:
        ValueError: It has more than `DIGITS` digits.
    """
    if len(text) > DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def parse_numbers(text: bytes) -> Any:
    """Parse JSON of measurements. NaN, infinity and numbers above `LARGEST` become None.

    Raises:
        ValueError: The text is not JSON, or an integer has more than `DIGITS` digits.
    """
    return _DECODER.decode(text.decode())


def _parse_float(text: str) -> float | None:
    value = float(text)
    return value if -LARGEST <= value <= LARGEST else None


_DECODER = json.JSONDecoder(parse_float=_parse_float, parse_int=parse_int, parse_constant=lambda _: None)


def intern_texts(value: Any) -> Any:
    """Return an equal JSON value whose names and texts are the same objects as those of other values.

    The files of thousands of runs have the same names, which then take memory once.
    """
    if isinstance(value, dict):
        return {sys.intern(name): intern_texts(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [intern_texts(inner) for inner in value]
    return sys.intern(value) if type(value) is str else value


def check_form(value: Any, form: Form, name: str) -> None:
    """Raise ValueError unless a value that was read from a file has the expected form.

    Args:
        value: The value.
        form: A type, or several; ``[form]`` for a list; ``{str: form}`` for an object with any fields; or
            ``{"field": form}`` for an object with at least these fields. The name of a field that may be missing or
            null ends with "?".
        name: Name of the value, for the error.
    """
    if isinstance(form, dict):
        _require(isinstance(value, dict), "an object", value, name)
        if str in form:
            for field, inner in value.items():
                check_form(inner, form[str], f"{name}.{field}")
            return
        for field, inner in form.items():
            known = field.removesuffix("?")
            found = value.get(known)
            if type(found) is not inner and (known == field or found is not None):
                check_form(found, inner, f"{name}.{known}")
    elif isinstance(form, list):
        _require(isinstance(value, list), "a list", value, name)
        for number, item in enumerate(value):
            if type(item) is not form[0]:
                check_form(item, form[0], f"{name}[{number}]")
    else:
        kinds = form if isinstance(form, tuple) else (form,)
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        _require(fits, " or ".join(kind.__name__ for kind in kinds), value, name)


def _require(holds: bool, expected: str, value: Any, name: str) -> None:
    if not holds:
        raise ValueError(f"Expected {name} to be {expected}; found {str(value)[:80]!r}.")
