"""Parsing of trials: names and texts of a command line become trials, checked before anything is read or written."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown_name_error
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.plan.trial import Trial
from pogm.core.hyperparameters import apply_large_defaults, fields, replace_fields
from pogm.core.plugins import registered_name, short_name
from pogm.data.datasets import dataset_class, is_named_dataset, named_datasets
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.datasets.base import DomainDataset
from pogm.data.datasets.folder import Folder
from pogm.data.images.metadata import is_table, split_options
from pogm.data.images.parallel import Progress, no_progress
from pogm.data.tables.samples import is_array_file
from pogm.modifiers import all_modifiers, modifier_class

LISTED = 6  # maximum number of methods that an error lists by name


@dataclass(frozen=True)
class Combination:
    """An algorithm with its modifiers on a dataset: everything that a setting can apply to.

    Names of other packages are replaced by the paths that trials have.
    """

    algorithm: str  # name of the algorithm
    modifiers: tuple[str, ...]  # names of the modifiers
    dataset: DomainDataset

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", algorithm_names([self.algorithm])[0])
        object.__setattr__(self, "modifiers", modifier_names(self.modifiers))

    @property
    def label(self) -> str:
        """Name in a table, such as "POGM + Mixup"."""
        return " + ".join((self.algorithm, *self.modifiers))

    def names(self) -> dict[str, list[str]]:
        """Return the names that can be set, by part: algorithm, training, dataset, and each modifier."""
        parts: dict[str, Any] = {
            "algorithm": algorithm_class(self.algorithm),
            "training": self.dataset.training,
            "dataset": self.dataset,
            **{name: modifier_class(name) for name in self.modifiers},
        }
        return {owner: _settable(part) for owner, part in parts.items()}


def build_trial(
    dataset: str | DomainDataset,
    algorithm: str,
    test_domains: Sequence[str],
    *,
    data: Path | None = None,
    preset: str | None = None,
    modifiers: Sequence[str] = (),
    settings: Sequence[str] = (),
    progress: Progress = no_progress,
    **options: Any,
) -> Trial:
    """Return the trial that names and texts describe.

    Args:
        dataset: A dataset, its name, or the path of a folder of images, of a table or of a file of arrays.
        algorithm: Name of an algorithm.
        test_domains: Names or indices of the held-out domains.
        data: Folder of the datasets.
        preset: Name of a preset of the algorithm.
        modifiers: Names of modifiers.
        settings: Texts such as "kappa=0.1" or "Mixup.alpha=0.4".
        progress: Shows how many images were read.
        options: Other fields of `Trial`, such as ``steps`` or ``seed``; None for the default.

    Raises:
        UsageError: If a name is unknown, or a value is out of its range.
    """
    found = find_dataset(dataset, data, progress) if isinstance(dataset, str) else dataset
    combination = Combination(algorithm, tuple(modifiers), found)
    method = algorithm_class(algorithm)
    parts: dict[str, Any] = {
        "algorithm": apply_large_defaults(method() if preset is None else method.preset(preset), found.large),
        "training": found.training,
        "dataset": found,
        **{name: apply_large_defaults(modifier_class(name)(), found.large) for name in combination.modifiers},
    }
    if len(parts) < 3 + len(modifiers):
        raise UsageError(f"Expected each modifier once; found {', '.join(modifiers)}. Leave out the repeated one.")
    check_settings(settings, [combination], "--algorithm")
    apply(settings_for(combination, settings), parts, f"a hyperparameter of {algorithm} on {found.title}")
    return Trial.build(parts, tuple(_domain_index(name, found) for name in test_domains), **options)


def algorithm_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of algorithms as trials have them: the path of an algorithm of another package.

    Raises:
        UsageError: If there is no such algorithm; the message says how to write a modifier that was given as one.
    """
    for name in names:
        first, *others = [part.strip() for part in name.split("+")]
        known, modifiers = all_algorithms(), all_modifiers()
        if others and known.has(first) and all(map(modifiers.has, others)):
            raise UsageError(
                f"Expected an algorithm; found {name!r}, an algorithm with modifiers. Name the modifiers in an option "
                f"of their own: {first} --with {' '.join(others)}"
            )
        if not known.has(name) and modifiers.has(name):
            raise UsageError(
                f"Expected an algorithm; found the modifier {name}. Combine it with one: ERM --with {name} (in pogm "
                f"train: 'ERM + {name}')."
            )
    return tuple(registered_name(algorithm_class(name)) for name in names)


def modifier_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of modifiers as trials have them: the path of a modifier of another package."""
    return tuple(registered_name(modifier_class(name)) for name in names)


def find_dataset(name: str, data: Path | None = None, progress: Progress = no_progress) -> DomainDataset:
    """Return a dataset by name, or a folder of images, a metadata file, a table or arrays by the path.

    A path may be relative to the data folder. Options may follow it: ``sites/metadata.csv:label=y,group=patient``.
    ``progress`` shows how many images were read.
    """
    if is_named_dataset(name):
        return dataset_class(name)()
    path, options = split_options(name)
    found = find_data_path(path, data)
    if found is not None:
        if is_array_file(found, options):
            return ArrayFile.from_path(found, options)
        return Folder.from_path(found, options, progress)
    raise no_data_error(path)


def no_data_error(path: str) -> UsageError:
    """Return the error for a dataset that is neither a known name nor an existing path."""
    folder, name = os.path.split(path.rstrip(os.sep))
    is_path = bool(folder) or is_table(path) or is_array_file(Path(path))
    near = difflib.get_close_matches(name, _data_names(folder), n=1, cutoff=0.7)
    if is_path or near:
        hint = f"Did you mean {os.path.join(folder, near[0])}?" if near else "Check the path."
        what = "a folder of images, a table or a file of arrays"
        return UsageError(f"Expected {what} at {path}; found none. {hint}")
    return unknown_name_error("a dataset or a folder of images", path, named_datasets())


def _data_names(folder: str) -> list[str]:
    """Return the names of folders, tables and files of arrays in a folder; none if it cannot be read."""
    try:
        entries = list(os.scandir(folder or "."))
    except OSError:
        return []
    return [
        entry.name for entry in entries if entry.is_dir() or is_table(entry.name) or is_array_file(Path(entry.name))
    ]


def find_data_path(name: str, data: Path | None) -> Path | None:
    """Return the path of images, a table or arrays, or of this name in the data folder; None if it is missing."""
    paths = [Path(name), *([data / name] if data else [])]
    is_data = (path.is_dir() or (path.is_file() and (is_table(path) or is_array_file(path))) for path in paths)
    return next((path for path, found in zip(paths, is_data, strict=True) if found), None)


def data_folder(names: Sequence[str], data: Path | None) -> Path | None:
    """Return the folder of the datasets: ``data``, or the parent folder of a dataset that is given as a path."""
    given = [split_options(name) for name in names if not is_named_dataset(name)]
    paths = [
        path if path.is_dir() or is_array_file(path, options) else path.parent  # the folder of a metadata file
        for name, options in given
        if (path := find_data_path(name, None)) is not None
    ]
    parents = {path.resolve().parent for path in paths}
    elsewhere = data is not None and len(paths) < len(names) and parents != {data.resolve()}
    if len(parents) > 1 or (parents and elsewhere):
        raise UsageError(
            f"Expected datasets of one data folder; found them in several: {', '.join(names)}. "
            "Put them side by side, name that folder with --data, and give their names alone."
        )
    return parents.pop() if parents else data


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
        prefix, name, _ = _split_setting(setting)
        owners = {owner for found in combinations for owner in (found.algorithm, *found.names())}
        owners |= set(map(short_name, owners))
        if prefix and prefix not in owners:
            raise _unknown_prefix_error(setting, prefix, owners, where)
        concerned = [found for found in combinations if _names(found, prefix) is not None]
        lacking = [found for found in concerned if name not in (_names(found, prefix) or ())]
        if len(lacking) == len(concerned):
            kind = f"a hyperparameter of {_names_text(concerned, prefix)}"
            for method in (algorithm_class(found.algorithm) for found in concerned):
                if text := getattr(method, "replaced", {}).get(name):
                    raise UsageError(f"Expected {kind}; found {name!r}, which was replaced by {text}.")
            raise unknown_name_error(
                kind, name, {known for found in concerned for known in _names(found, prefix) or ()}
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
        prefix, name, value = _split_setting(setting)
        part = _part(combination, prefix)
        if part == combination.algorithm:
            parts = ("algorithm", "training", "dataset")
            owner = next((part for part in parts if name in combination.names()[part]), "algorithm")
            chosen.append(f"{owner}.{name}={value}")
        elif _names(combination, prefix) is not None:
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
        _set(parts, setting, kind)


def _split_setting(setting: Any) -> tuple[str, str, str]:
    """Split a setting into prefix (empty if there is none), name and value."""
    if not isinstance(setting, str):
        raise UsageError(f"Expected settings such as 'kappa=0.1'; found {setting!r}. Restore the file.")
    path, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"Expected --set NAME=VALUE; found {setting!r}. For example: --set lr=0.001")
    prefix, _, name = path.rpartition(".")
    return prefix, name, value


def _names(combination: Combination, prefix: str) -> list[str] | None:
    """Return the names that a setting with this prefix can have in a combination; None if it does not apply to it."""
    names = combination.names()
    if not prefix:
        return [name for part in names.values() for name in part]
    part = _part(combination, prefix)
    if part == combination.algorithm:
        return names["algorithm"] + names["training"] + names["dataset"]
    return names.get(part)


def _part(combination: Combination, prefix: str) -> str:
    """Return the part of a combination that a prefix names; a class of another package also has its short name."""
    parts = (combination.algorithm, *combination.modifiers)
    return next((part for part in parts if prefix in (part, short_name(part))), prefix)


def _advice(having: Combination, setting: str) -> str:
    """Return the advice for a setting that only some combinations have."""
    _, name, value = _split_setting(setting)
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


def _settable(part: Any) -> list[str]:
    return [field.name for field in fields(part) if field.name not in getattr(part, "facts", ())]


def _set(parts: dict[str, Any], setting: str, kind: str) -> None:
    prefix, name, value = _split_setting(setting)
    known = [(owner, field) for owner, part in parts.items() for field in _settable(part)]
    owners = [owner for owner, field in known if field == name and prefix in ("", owner)]
    if not owners:
        raise unknown_name_error(kind, setting.partition("=")[0], {field for _, field in known})
    if len(owners) > 1:
        choices = ", ".join(f"{short_name(owner)}.{name}" for owner in owners)
        raise UsageError(f"Expected the name of one hyperparameter; found {name!r}, which is {choices}. Choose one.")
    parts[owners[0]] = replace_fields(parts[owners[0]], {name: value})


def _domain_index(name: str, dataset: DomainDataset) -> int:
    """Return the index of a domain, given by its name, the name of its folder, or its index."""
    domains = dataset.domains
    for names in (domains, getattr(dataset, "folders", ())):
        if name in names:
            return int(names.index(name))
    numbers = [str(index) for index in range(len(domains))]
    if name in numbers:
        return numbers.index(name)
    raise unknown_name_error(
        f"a domain of {dataset.title}, by name or by number from 0 to {len(domains) - 1},", name, domains
    )
