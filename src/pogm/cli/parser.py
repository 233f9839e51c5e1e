"""Commands as typed dataclasses, and the argparse parser that is derived from them.

A command is a subclass of `Command`. Each of its fields is an option or a positional argument: `option`, `argument`.
A field made by `group` is a dataclass of options that several commands share. The type of a field says how the words
of the command line are read:

| type | option |
|---|---|
| ``bool`` | a flag without a value |
| ``int``, ``float``, or one of these or ``None`` | one number, with a smallest and a largest value |
| ``str``, ``Path``, or one of these or ``None`` | one value |
| ``Literal["a", "b"]``, or this or ``None`` | one of the values |
| ``tuple[str, ...]`` | one or more values; with ``repeat=True``, ``--name a --name b`` is the usual form |

The values that argparse returns are only those that were given, on the command line or in a file of ``--config``.
Everything else has the default of its field.
"""

import argparse
import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from pogm._system.errors import shorten
from pogm._system.terminal import printable
from pogm.cli.completion import add_completer
from pogm.cli.config import FROM_FILE, ReadConfig

Default = Any
MISSING = dataclasses.MISSING


def option(
    help: str,
    default: Default = MISSING,
    *,
    default_factory: Callable[[], Any] | None = None,
    flag: str = "",
    short: str = "",
    metavar: str | None = None,
    repeat: bool = False,
    alone: Any = None,
    least: float | None = None,
    most: float | None = None,
    complete: str = "",
    action: type[argparse.Action] | None = None,
) -> Any:
    """Return a dataclass field that is an option of the command line.

    Args:
        help: One sentence for --help: what the option does, its unit, and its default unless that is a plain value,
            which is added to the text.
        default: Value if the option is not given. Without a default, the option is required.
        default_factory: Function that returns the default when the command line is read.
        flag: Name on the command line, if it is not the name of the field.
        short: Second name of one letter, such as -q.
        metavar: Name of the value in --help.
        repeat: For a tuple: the option may be given several times, with one value each.
        alone: Value if the option is given without a value. None: the option needs a value.
        least: Smallest value of a number. Every number has both limits.
        most: Largest value of a number.
        complete: Names that a shell suggests for the value: a key of ``pogm.cli.completion.COMPLETERS``.
        action: Class of the argparse action, if it is not the usual one for the type.
    """
    metadata = {"help": help, "flag": flag, "short": short, "metavar": metavar, "repeat": repeat, "alone": alone}
    metadata |= {"limits": (least, most), "complete": complete, "action": action}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(help: str, default: Default = MISSING, *, metavar: str | None = None, complete: str = "") -> Any:
    """Return a dataclass field that is a positional argument of the command line, required if it has no default."""
    metadata = {"help": help, "positional": True, "metavar": metavar, "complete": complete}
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: Callable[[], Any]) -> Any:
    """Return a dataclass field that holds a dataclass of options, which appear under its title in --help."""
    return dataclasses.field(default_factory=kind, metadata={"group": kind})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    title: ClassVar[str] = "every command"
    config: Path | None = option(
        "TOML file with options of this command; the command line overrides it (default: none).",
        None,
        metavar="FILE",
        action=ReadConfig,
    )
    save_config: Path | None = option(
        "Write the options that differ from their defaults to a TOML file, for --config, and go on (default: none).",
        None,
        metavar="FILE",
    )
    quiet: bool = option("Print only results, warnings and errors: no progress and no notes.", False, short="-q")
    verbose: bool = option("Also say on standard error what is done and how long it takes.", False, short="-v")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A verb of the command line, named after the class.

    Its options are the fields, its summary in --help is the docstring, and its action is `run`.
    """

    examples: ClassVar[str]  # one command per line, optionally followed by spaces and an explanation
    notes: ClassVar[str] = ""  # text below the examples
    trains: ClassVar[bool] = False  # True if it continues even when its output cannot be written
    under_torchrun: ClassVar[bool] = False  # True if the processes of torchrun may run it together
    commands: ClassVar[tuple[type["Command"], ...]] = ()  # commands below this one, such as those of ``pogm data``

    common: Common = group(Common)

    def run(self) -> int:
        """Execute the command and return its exit code."""
        raise NotImplementedError


class MissingWordsError(Exception):
    """Command line without a required argument or option. `Parser.report` prints the error."""

    def __init__(self, parser: "Parser", message: str):
        super().__init__(message)
        self.parser, self.message = parser, message

    def report(self, words: Sequence[str]) -> NoReturn:
        """Print the usage and the error, with unknown options of the command line, and exit with code 2."""
        self.parser.report(self.message + self.parser.describe_unknown_options(words))


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors suggest the nearest option or choice."""

    def __init__(self, prog: str, **options: Any):
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._negative_number_matcher = re.compile(r"-\d")  # values, such as the domain -90%; no option has digits

    def error(self, message: str) -> NoReturn:
        """Report an error; see `report`. One of missing words is raised: `parse` may read the words in another way."""
        if message.startswith("the following arguments are required"):
            raise MissingWordsError(self, message)
        self.report(message)

    def report(self, message: str) -> NoReturn:
        """Print the usage and the error, with a suggestion, and exit with code 2."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)$", message):
            message += _suggestion(found[1], re.findall(r"[\w-]+", found[2]))
        super().error(printable(message))

    def refuse_unknown(self, words: Sequence[str], advice: str = "") -> NoReturn:
        """Report words that are neither options nor arguments of this command, and a similar option or the advice."""
        hints = (_suggestion(word.partition("=")[0], self._flags) for word in words if word.startswith("--"))
        self.error(f"unrecognized arguments: {' '.join(words)}{next((hint for hint in hints if hint), advice)}")

    def repeat_options(self, words: Sequence[str]) -> list[str]:
        """Return the words with ``--hold-out a b`` as ``--hold-out a --hold-out b``, for options that take several."""
        lists = [action for action in self._actions if isinstance(action, argparse._AppendAction)]
        flags = {flag for action in lists for flag in action.option_strings}
        found, flag, has_value = list[str](), "", False
        for word in words:
            if word.startswith("-"):
                flag, has_value = word if word in flags else "", False
            elif flag:
                found += [flag] * has_value
                has_value = True
            found.append(word)
        return found

    def describe_unknown_options(self, words: Sequence[str]) -> str:
        """Return a text about words that look like options and are none: often a required option is misspelt."""
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown = [flag for flag in flags if not any(known.startswith(flag) for known in self._flags)]
        return "".join(f"; unrecognized: {flag}{_suggestion(flag, self._flags)}" for flag in unknown[:1])

    @property
    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


def _suggestion(word: str, known: Sequence[str]) -> str:
    names = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f". Did you mean {names[near[0]]}?" if near else ""


class TopParser(Parser):
    """The parser of the program, whose help lists the commands in groups."""

    def __init__(self, about: str, groups: Mapping[str, Mapping[str, str]], **options: Any):
        super().__init__("pogm", **options)
        self.about, self.groups = about, groups

    def format_help(self) -> str:
        """Return the help: usage, commands in groups, options, examples."""
        width = max(len(name) for listed in self.groups.values() for name in listed)
        lines = [self.format_usage(), self.about, ""]
        for title, listed in self.groups.items():
            lines += [f"{title}:", *(f"  {name:<{width}}  {summary}" for name, summary in listed.items()), ""]
        options = "  -h, --help     show this message; pogm COMMAND --help shows the options of a command\n"
        return "\n".join([*lines, "options:", options + "  --version      show the version", "", self.epilog or ""])


def command_summary(command: type[Command]) -> str:
    """Return the sentence that describes a command in --help."""
    return (command.__doc__ or "").strip().splitlines()[0]


def add_commands(parser: Parser, commands: Iterable[type[Command]]) -> None:
    """Add commands to the program, or to a command that has commands of its own."""
    subparsers = parser.add_subparsers(
        required=True, metavar="COMMAND", help=argparse.SUPPRESS, parser_class=Parser, prog=parser.prog
    )
    for command in commands:
        lines = command.examples.strip().splitlines()
        title = "example" if len(lines) == 1 else "examples"
        epilog = "\n".join([f"{title}:", *(f"  {line}" for line in lines), command.notes]).rstrip()
        added = subparsers.add_parser(
            command.__name__.lower(),
            description=_description(command),
            epilog=epilog,
            usage=f"{parser.prog} {command.__name__.lower()} {_usage(command)}",
        )
        added.set_defaults(command=command, parser=added)
        if command.commands:
            add_commands(added, command.commands)
        else:
            _add_fields(added, added, command)


def _description(command: type[Command]) -> str:
    listed = {one.__name__.lower(): command_summary(one) for one in command.commands}
    width = max(map(len, listed), default=0)
    return "\n".join([command_summary(command), *(f"  {name:<{width}}  {text}" for name, text in listed.items())])


def _usage(command: type[Command]) -> str:
    """Return the required words of a command; --help lists the options."""
    if command.commands:
        return "[-h] COMMAND ..."
    hints, words = get_type_hints(command), []
    for field in dataclasses.fields(command):
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.metadata.get("positional"):
            value = field.metadata["metavar"] or field.name.upper()
            words.append(f"{value} [{value} ...]" if get_origin(hints[field.name]) is tuple else value)
        elif field.metadata.get("positional"):
            words.append(f"[{field.metadata['metavar'] or field.name.upper()}]")
        elif required:
            value = field.metadata["metavar"] or field.name.upper()
            several = get_origin(hints[field.name]) is tuple and not field.metadata["repeat"]
            words.append(f"{_flag(field)} {value}{f' [{value} ...]' * several}")
    return " ".join([*words, "[options]"])


def _flag(field: dataclasses.Field[Any]) -> str:
    return field.metadata["flag"] or f"--{field.name.replace('_', '-')}"


def make(kind: type[Any], values: argparse.Namespace) -> Any:
    """Return the dataclass of a command, or of a group of options, from the values that argparse has read."""
    return _make(kind, {**getattr(values, FROM_FILE, {}), **vars(values)})


def _make(kind: type[Any], given: Mapping[str, Any]) -> Any:
    fields = {}
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            fields[field.name] = _make(field.metadata["group"], given)
        elif field.name in given:
            value = given[field.name]
            fields[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**fields)


NOT_SAVED = ("config", "save-config", "dry-run", "estimate")


def changed_options(owner: Any) -> dict[str, Any]:
    """Return the options of a command that differ from their defaults, by their names without dashes.

    An option that was given without its value is True. Options that a file must not turn on are left out: --config and
    --save-config, and --dry-run and --estimate, which no option turns off.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if "group" in field.metadata:
            found |= changed_options(value)
        elif not field.metadata.get("positional") and value != _default(field):
            alone = field.metadata["alone"]
            found[_flag(field).removeprefix("--")] = True if alone is not None and value == alone else value
    return {name: value for name, value in found.items() if name not in NOT_SAVED}


def _add_fields(parser: Parser, target: Any, kind: type[Any]) -> None:
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    for field in sorted(fields, key=lambda field: field.name == "common"):  # the options of every command come last
        if shared := field.metadata.get("group"):
            title = getattr(shared, "title", "")
            _add_fields(parser, parser.add_argument_group(title) if title else target, shared)
        else:
            _add_field(target, field, hints[field.name])


def _add_field(target: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    metadata, arguments = field.metadata, _reading(hint, field.metadata)
    arguments["help"] = _help(field).replace("%", "%%")
    arguments["default"] = argparse.SUPPRESS  # only what was given is in the namespace
    is_required = field.default is MISSING and field.default_factory is MISSING
    if metadata["metavar"]:
        arguments["metavar"] = metadata["metavar"]
    if metadata.get("positional"):
        if "choices" not in arguments:
            arguments.setdefault("metavar", field.name.upper())
        if not is_required:
            arguments["nargs"] = "?"
        added = target.add_argument(field.name, **arguments)
    else:
        names = [metadata["short"]] if metadata["short"] else []
        added = target.add_argument(*names, _flag(field), dest=field.name, required=is_required, **arguments)
    add_completer(added, metadata["complete"])


def _reading(hint: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for a type."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if hint is bool:
        return {"action": "store_true"}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        kind = _reader(get_args(hint)[0])
        if metadata.get("repeat"):
            return {"type": kind, "action": "append"}
        # An option that is given twice adds to its list.
        return {"type": kind, "nargs": "+", **({} if metadata.get("positional") else {"action": "extend"})}
    if hint in (int, float):
        least, most = metadata["limits"]
        return {"type": partial(_read_number, hint, least, most), "metavar": "N" if hint is int else "X"}
    found: dict[str, Any] = {"type": _reader(hint)}
    if metadata.get("action") is not None:
        found["action"] = metadata["action"]
    if metadata.get("alone") is not None:
        found |= {"nargs": "?", "const": metadata["alone"]}
    return found


def _reader(kind: type[Any]) -> Callable[[str], Any]:
    return read_path if kind is Path else kind


def read_path(text: str) -> Path:
    """Return a path; no file system has names with a null character."""
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"Expected a path; found {shorten(text)}.")
    return Path(text)


def _read_number(kind: type[int] | type[float], least: float, most: float, text: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:  # also refuses nan
        expected = f"a whole number from {least} to {most}" if kind is int else f"a number from {least:g} to {most:g}"
        raise argparse.ArgumentTypeError(f"Expected {expected}; found {shorten(text)}.")
    return number


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _help(field: dataclasses.Field[Any]) -> str:
    """Return the help of an option with its default, where the text does not say it."""
    text: str = field.metadata["help"]
    absent = field.default is MISSING or field.default is None or field.default is False or field.default == ()
    shown = not absent and "default:" not in text
    return f"{text.removesuffix('.')} (default: {field.default})." if shown else text
