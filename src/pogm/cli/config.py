"""Options in TOML files: ``--config`` reads them, ``--save-config`` writes them.

A key is the name of an option without its dashes. A top-level key is an option of the command at hand. A table that has
the name of a command, such as ``[sweep]`` or ``["data check"]``, holds options of that command only, so that one file
serves several commands. Values are read by the argparse actions of the options, so a file accepts what the command line
accepts.
"""

import argparse
import difflib
import errno
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, shorten, unknown_name_error
from pogm._system.saved import read_regular

FROM_FILE = "from_file"  # attribute of the namespace: values that files gave, by the names of the fields
LARGEST = 1 << 20  # bytes of a file
NOT_IN_FILES = ("help", "config", "save-config")
KINDS = {bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "a list", dict: "a table"}


class ReadConfig(argparse.Action):
    """Action of ``--config``: read the file, and require no option that it has."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep the values of the file beside those of the command line, which override them."""
        if "_ARGCOMPLETE" in os.environ:  # the name of the file may not be complete
            return
        found = read_config(values, parser)
        setattr(namespace, self.dest, values)
        setattr(namespace, FROM_FILE, {**getattr(namespace, FROM_FILE, {}), **found})
        for action in parser._actions:
            if action.dest in found:
                action.required = False


def read_config(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the values of a file for the command of a parser, by the names of the fields.

    Raises:
        UsageError: The file cannot be read, a key is unknown, or a value is not valid for its option.
    """
    content = _load(path)
    command = parser.prog.removeprefix("pogm ")
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    if tables:
        from pogm.cli import command_names

        tables = {name: value for name, value in tables.items() if name in command_names()}
    shared = {name: value for name, value in content.items() if name not in tables}
    return {**_read_table(shared, path, parser), **_read_table(tables.get(command, {}), path, parser)}


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder")
        content = read_regular(path, LARGEST)
    except OSError as error:
        raise UsageError(
            f"Expected a TOML file for --config at {path}; found: {error.strerror or error}. Check the path."
        ) from error
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Expected TOML in {path}; found: {error}. Correct that line.") from error


def _read_table(table: Mapping[str, Any], path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    known = {
        flag.removeprefix("--"): action
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and flag.removeprefix("--") not in NOT_IN_FILES
    }
    namespace = argparse.Namespace()
    for key, value in table.items():
        action = known.get(key.replace("_", "-"))
        if action is None:
            raise _unknown_key_error(key, path, parser, list(known))
        if hasattr(namespace, action.dest):
            raise UsageError(f"Expected each option once in {path}; found {key} twice. Leave one out.")
        _read_value(key, value, path, parser, action, namespace)
    return vars(namespace)


def _unknown_key_error(key: str, path: Path, parser: argparse.ArgumentParser, known: Sequence[str]) -> UsageError:
    if key in [action.dest for action in parser._actions if not action.option_strings]:
        advice = "It is an argument, not an option: give it on the command line."
    elif near := difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5):
        advice = f"Did you mean {near[0]!r}?"
    else:
        advice = f"See: {parser.prog} --help"
    return UsageError(f"Expected options of {parser.prog} in {path}; found the key {shorten(key)}. {advice}")


def _read_value(
    key: str,
    value: Any,
    path: Path,
    parser: argparse.ArgumentParser,
    action: argparse.Action,
    namespace: argparse.Namespace,
) -> None:
    """Set the value of a key in the namespace by the action of its option."""
    takes_several = isinstance(action, argparse._AppendAction) or action.nargs == "+"
    values = value if takes_several and isinstance(value, list) else [value]
    if action.nargs == 0 or (action.nargs == "?" and isinstance(value, bool)):
        if not isinstance(value, bool):
            raise _type_error(key, value, path, "true or false")
        if value:
            action(parser, namespace, [] if action.nargs == 0 else action.const)
        elif action.nargs == 0:
            setattr(namespace, action.dest, False)
        return
    if not values:
        if action.required:
            raise _type_error(key, value, path, "a list with at least one value")
        setattr(namespace, action.dest, [])
        return
    words = [_word(key, one, path, action) for one in values]
    try:
        for group in [[word] for word in words] if isinstance(action, argparse._AppendAction) else [words]:
            action(parser, namespace, parser._get_values(action, group), action.option_strings[-1])
    except argparse.ArgumentError as error:
        if action.choices is not None:
            raise unknown_name_error(f"{key} in {path}", value, map(str, action.choices)) from error
        raise UsageError(f"Expected a valid value of {key} in {path}. {error.message}") from error


def _word(key: str, value: Any, path: Path, action: argparse.Action) -> str:
    """Return a value as the word of a command line that means it.

    Raises:
        UsageError: The value has another type than the option.
    """
    from pogm.cli.parser import read_path

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(action.type, partial):  # the reader of a number
        kind = action.type.args[0]
        if not is_number or (kind is int and isinstance(value, float)):
            raise _type_error(key, value, path, KINDS[kind])
        return repr(value)
    if isinstance(value, str):
        return os.path.expanduser(value) if action.type is read_path else value
    if is_number and action.type is str and not isinstance(value, float):
        return repr(value)  # such as the number of a domain
    takes_several = isinstance(action, argparse._AppendAction) or action.nargs == "+"
    raise _type_error(key, value, path, "a string or a list of strings" if takes_several else "a string")


def _type_error(key: str, value: Any, path: Path, expected: str) -> UsageError:
    found = f"{KINDS.get(type(value), type(value).__name__)}, {shorten(value)}"
    return UsageError(f"Expected {expected} for {key} in {path}; found {found}. Change it.")


def config_text(options: Mapping[str, Any], command: str) -> str:
    """Return a TOML file with options of a command.

    Args:
        options: Values by the names of the options without dashes, see ``parser.changed_options``.
        command: Words of the command, for a comment.

    Raises:
        UsageError: A text cannot be encoded in UTF-8.
    """
    return "\n".join([f"# Options of: {command}", *(f"{name} = {_toml(v)}" for name, v in options.items()), ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"Expected UTF-8 text for --save-config; found {shorten(text)}. Rename the file, or leave the option out."
        ) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
