"""Settings of hyperparameters as texts: "lr=0.001" for everything that is run, "POGM.kappa=0.1" for one algorithm."""

from collections.abc import Sequence
from typing import Any

from pogm._system.errors import UsageError, unknown_name_error
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.plan.combination import Combination, settable_names
from pogm.core.hyperparameters import replace_fields
from pogm.core.plugins import short_name
from pogm.modifiers import all_modifiers

LISTED = 6  # maximum number of methods that an error lists by name


def check_settings(settings: Sequence[str], combinations: Sequence[Combination], where: str = "--algorithms") -> None:
    """Check settings such as "lr=0.001" and "POGM.kappa=0.1" against everything that will be run.

    A name without a prefix must be a hyperparameter of every combination. A prefix is an algorithm, a modifier,
    ``algorithm``, ``training`` or ``dataset``; it must be part of some combination.

    Args:
        settings: Texts NAME=VALUE or PREFIX.NAME=VALUE.
        combinations: Everything that will be run.
        where: The option that adds an algorithm, for the error; empty if there is none.

    Raises:
        UsageError: If a text is malformed, or a prefix or a name is unknown, absent or not common to all.
    """
    for setting in settings:
        prefix, name, _ = split_setting(setting)
        owners = {owner for found in combinations for owner in (found.algorithm, *found.names())}
        owners |= set(map(short_name, owners))
        if prefix and prefix not in owners:
            raise _unknown_prefix_error(setting, prefix, owners, where)
        concerned = [found for found in combinations if found.names_after(prefix) is not None]
        lacking = [found for found in concerned if name not in (found.names_after(prefix) or ())]
        if len(lacking) == len(concerned):
            kind = f"a hyperparameter of {_names_text(concerned, prefix)}"
            for method in (algorithm_class(found.algorithm) for found in concerned):
                if text := getattr(method, "replaced", {}).get(name):
                    raise UsageError(f"Expected {kind}; found {name!r}, which was replaced by {text}.")
            raise unknown_name_error(
                kind, name, {known for found in concerned for known in found.names_after(prefix) or ()}
            )
        if lacking:
            having = [found for found in concerned if found not in lacking]
            raise UsageError(
                f"Expected a hyperparameter of everything that is run; found {name!r}, which is missing from "
                f"{_names_text(lacking, prefix)}. {_advice(having[0], setting)}"
            )


def settings_for(combination: Combination, settings: Sequence[str]) -> list[str]:
    """Return the settings that apply to a combination, with the prefix that `apply` expects.

    "POGM.kappa=0.1" becomes "algorithm.kappa=0.1" for POGM and is left out for other algorithms; "POGM.lr=0.001"
    becomes "training.lr=0.001". Settings for a modifier are left out where it is not used.
    """
    chosen = []
    for setting in settings:
        prefix, name, value = split_setting(setting)
        part = combination.part(prefix)
        if part == combination.algorithm:
            parts = ("algorithm", "training", "dataset")
            owner = next((part for part in parts if name in combination.names()[part]), "algorithm")
            chosen.append(f"{owner}.{name}={value}")
        elif combination.names_after(prefix) is not None:
            chosen.append(f"{part}.{name}={value}" if part else setting)
    return chosen


def apply(settings: Sequence[str], parts: dict[str, Any], kind: str) -> None:
    """Change the parts of a trial in place: each text such as "kappa=0.1" changes the part that has this field.

    Args:
        settings: Texts from `settings_for`.
        parts: Parts of a trial by name, as for `Trial.build`.
        kind: Description of the expected names, for errors.
    """
    for setting in settings:
        prefix, name, value = split_setting(setting)
        known = [(owner, field) for owner, part in parts.items() for field in settable_names(part)]
        owners = [owner for owner, field in known if field == name and prefix in ("", owner)]
        if not owners:
            raise unknown_name_error(kind, setting.partition("=")[0], {field for _, field in known})
        if len(owners) > 1:
            choices = ", ".join(f"{short_name(owner)}.{name}" for owner in owners)
            raise UsageError(
                f"Expected the name of one hyperparameter; found {name!r}, which is {choices}. Choose one."
            )
        parts[owners[0]] = replace_fields(parts[owners[0]], {name: value})


def split_setting(setting: Any) -> tuple[str, str, str]:
    """Split a setting into prefix (empty if there is none), name and value."""
    if not isinstance(setting, str):
        raise UsageError(f"Expected settings such as 'kappa=0.1'; found {setting!r}. Restore the file.")
    path, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"Expected --set NAME=VALUE; found {setting!r}. For example: --set lr=0.001")
    prefix, _, name = path.rpartition(".")
    return prefix, name, value


def _advice(having: Combination, setting: str) -> str:
    """Return the advice for a setting that only some combinations have."""
    _, name, value = split_setting(setting)
    owner = next(part for part, names in having.names().items() if name in names)
    prefix = having.algorithm if owner == "algorithm" else owner
    if owner in ("training", "dataset"):
        return f"Give datasets like {having.dataset.title} a command of their own."
    return f"Name what it is for: --set {prefix}.{name}={value}"


def _unknown_prefix_error(setting: str, prefix: str, owners: set[str], where: str) -> UsageError:
    """Return the error for a prefix that is no part of any combination."""
    known = owners - {"algorithm", "training", "dataset"}
    if prefix in all_algorithms() or prefix in all_modifiers():
        option = where if prefix in all_algorithms() else "--with"
        advice = f"Add {prefix} to {option}, or leave out this setting." if where else "Leave out this setting."
        return UsageError(
            f"Expected a setting for what is run ({', '.join(sorted(known))}); found {setting!r}. {advice}"
        )
    return unknown_name_error(
        "an algorithm or a modifier of what is run, in front of the setting's name,", prefix, known
    )


def _names_text(combinations: Sequence[Combination], prefix: str) -> str:
    """Return a short text for combinations, for errors."""
    methods = list(dict.fromkeys(found.label for found in combinations))
    if prefix and prefix not in ("algorithm", "training", "dataset"):
        methods = [prefix]
    datasets = list(dict.fromkeys(found.dataset.title for found in combinations))
    text = ", ".join(methods) if len(methods) <= LISTED else f"{len(methods)} methods"
    return f"{text} on {', '.join(datasets)}"
