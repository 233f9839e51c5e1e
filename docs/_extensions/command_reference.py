"""Markdown of every command and option, from the parsers of the command line."""

import argparse
import re

from pogm.cli import VERBS, parser


def command_reference() -> str:
    """Return a section for every command."""
    top = parser()
    commands = _subcommands(top)
    parts = []
    for title, names in VERBS.items():
        parts.append(f"## {title.capitalize()}")
        for name in names:
            parts.extend(_command(commands[name], 3))
    return "\n\n".join(parts)


def _subcommands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _command(command: argparse.ArgumentParser, level: int) -> list[str]:
    """Return the section of a command: summary, usage, options by group, examples, and sections of its commands."""
    summary = (command.description or "").splitlines()[0]
    parts = [f"{'#' * level} {command.prog}", summary, f"```console\n{command.format_usage().strip()}\n```"]
    for group in command._action_groups:
        actions = [action for action in group._group_actions if _is_shown(action)]
        if actions:
            parts.append(f"**{(group.title or 'options').capitalize()}**")
            parts.extend(f"`{_invocation(action)}`\n: {_help(action)}" for action in actions)
    if command.epilog:
        parts.append(f"```console\n{command.epilog.strip()}\n```")
    for sub in _subcommands(command).values():
        parts.extend(_command(sub, level + 1))
    return parts


def _is_shown(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._HelpAction | argparse._SubParsersAction) and (
        action.help != argparse.SUPPRESS
    )


def _invocation(action: argparse.Action) -> str:
    """Return an option with its value, as --help shows it."""
    if action.nargs == 0:
        value = ""
    elif action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = str(action.metavar or action.dest.upper())
        value += f" [{value} ...]" if action.nargs in ("+", "*") else ""
        value = f"[{value}]" if action.nargs == "?" else value
    return " ".join([", ".join(action.option_strings), value]).strip()


def _help(action: argparse.Action) -> str:
    """Return the help text as Markdown: without the escape of argparse, options as code, no accidental markup."""
    text = re.sub(r"([\\`*_<>\[\]{}$|])", r"\\\1", (action.help or "").replace("%%", "%"))
    text = re.sub(r"(?<!\S)(--[a-z][\w-]*)", r"`\1`", text)
    return f"*Required.* {text}" if action.required and action.option_strings else text
