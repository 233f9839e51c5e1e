"""A trial out of names and texts, as a command line has them; checked before anything is read or written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.plan.trial import Trial
from pogm.core.hyperparameters import changed, fields, suited
from pogm.data.datasets import all_datasets, dataset_class
from pogm.data.datasets.base import DomainDataset
from pogm.data.datasets.folder import Folder
from pogm.diagnostics import Probe
from pogm.modifiers import all_modifiers, modifier_class

LISTED = 6  # methods that an error names; of more it gives the number


@dataclass(frozen=True)
class Combination:
    """An algorithm with its modifiers on a dataset: everything that a setting can apply to."""

    algorithm: str
    modifiers: tuple[str, ...]
    dataset: DomainDataset

    @property
    def label(self) -> str:
        """Name in a table, such as "POGM + Mixup"."""
        return " + ".join((self.algorithm, *self.modifiers))

    def names(self) -> dict[str, list[str]]:
        """Names that can be set, by part: algorithm, training, dataset, and each modifier."""
        parts: dict[str, Any] = {
            "algorithm": algorithm_class(self.algorithm),
            "training": self.dataset.training,
            "dataset": self.dataset,
            **{name: modifier_class(name) for name in self.modifiers},
        }
        return {owner: _settable(part) for owner, part in parts.items()}


def trial_of(
    dataset: str | DomainDataset,
    algorithm: str,
    test_domains: Sequence[str],
    *,
    data: Path | None = None,
    preset: str | None = None,
    modifiers: Sequence[str] = (),
    settings: Sequence[str] = (),
    steps: int | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    data_seed: int | None = None,
    trial_seed: int | None = None,
    precision: str = "fp32",
    probe: Probe | None = None,
) -> Trial:
    """The trial they describe. What is None is the dataset's, or the seed; ``settings`` are texts like "kappa=0.1"."""
    given = dataset_of(dataset, data) if isinstance(dataset, str) else dataset
    method = algorithm_class(algorithm)
    parts: dict[str, Any] = {
        "algorithm": suited(method() if preset is None else method.preset(preset), given.large),
        "training": given.training,
        "dataset": given,
        **{name: suited(modifier_class(name)(), given.large) for name in modifiers},
    }
    if len(parts) < 3 + len(modifiers):
        raise UsageError(f"Expected each modifier once; found {', '.join(modifiers)}. Leave out the repeated one.")
    combination = Combination(algorithm, tuple(modifiers), given)
    check_settings(settings, [combination], "--algorithm")
    apply(settings_for(combination, settings), parts, f"a hyperparameter of {algorithm} on {given.title}")
    return Trial(
        dataset=parts.pop("dataset"),
        algorithm=parts.pop("algorithm"),
        training=parts.pop("training"),
        modifiers=tuple(parts.values()),
        test_domains=tuple(_domain(name, given) for name in test_domains),
        steps=given.steps if steps is None else steps,
        evaluate_every=given.evaluate_every if evaluate_every is None else evaluate_every,
        seed=seed,
        data_seed=seed if data_seed is None else data_seed,
        trial_seed=seed if trial_seed is None else trial_seed,
        precision=precision,
        probe=probe or Probe(),
    )


def dataset_of(name: str, data: Path | None = None) -> DomainDataset:
    """A dataset by its name; or, of one's own, a folder of images by its path or by its name in the data folder."""
    if name in all_datasets() and name != Folder.__name__:
        return dataset_class(name)()
    folder = own_folder(name, data)
    if folder is not None:
        return Folder.of(folder)
    if os.sep in name:
        raise UsageError(f"Expected a folder of images at {name}; found none. Check the path.")
    raise unknown("a dataset", name, all_datasets().keys() - {Folder.__name__})


def own_folder(name: str, data: Path | None) -> Path | None:
    """A folder by its path, or by its name in the data folder."""
    places = [Path(name), *([data / name] if data else [])]
    return next((place for place in places if place.is_dir()), None)


def data_folder(names: Sequence[str], data: Path | None) -> Path | None:
    """The folder that holds the datasets: the one that was given, or the one around a dataset given as a path."""
    paths = [Path(name) for name in names if name not in all_datasets() and Path(name).is_dir()]
    around = {path.resolve().parent for path in paths}
    elsewhere = data is not None and len(paths) < len(names) and around != {data.resolve()}
    if len(around) > 1 or (around and elsewhere):
        raise UsageError(
            f"Expected datasets of one data folder; found them in several: {', '.join(names)}. "
            "Put them side by side, name that folder with --data, and give their names alone."
        )
    return around.pop() if around else data


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
        prefix, name, _ = _parsed(setting)
        owners = {owner for found in combinations for owner in (found.algorithm, *found.names())}
        if prefix and prefix not in owners:
            raise _no_owner(setting, prefix, owners, where)
        concerned = [found for found in combinations if _names(found, prefix) is not None]
        lacking = [found for found in concerned if name not in (_names(found, prefix) or ())]
        if len(lacking) == len(concerned):
            kind = f"a hyperparameter of {_listed(concerned, prefix)}"
            for method in (algorithm_class(found.algorithm) for found in concerned):
                if text := getattr(method, "replaced", {}).get(name):
                    raise UsageError(f"Expected {kind}; found {name!r}, which was replaced by {text}.")
            raise unknown(kind, name, {known for found in concerned for known in _names(found, prefix) or ()})
        if lacking:
            having = [found for found in concerned if found not in lacking]
            raise UsageError(
                f"Expected a hyperparameter of everything that is run; found {name!r}, which is missing from "
                f"{_listed(lacking, prefix)}. {_narrower(having[0], setting)}"
            )


def settings_for(combination: Combination, settings: Sequence[str]) -> list[str]:
    """Settings that apply to a combination, with the prefix that `apply` expects.

    "POGM.kappa=0.1" becomes "algorithm.kappa=0.1" for POGM and is left out for other algorithms; "POGM.lr=0.001"
    becomes "training.lr=0.001". Settings for a modifier are left out where it is not used.
    """
    chosen = []
    for setting in settings:
        prefix, name, value = _parsed(setting)
        if prefix == combination.algorithm:
            parts = ("algorithm", "training", "dataset")
            owner = next((part for part in parts if name in combination.names()[part]), "algorithm")
            chosen.append(f"{owner}.{name}={value}")
        elif _names(combination, prefix) is not None:
            chosen.append(setting)
    return chosen


def apply(settings: Sequence[str], parts: dict[str, Any], kind: str) -> None:
    """Change, for each text like "kappa=0.1", the one part that has a field of that name."""
    for setting in settings:
        _set(parts, setting, kind)


def _parsed(setting: Any) -> tuple[str, str, str]:
    """Prefix (empty if there is none), name and value of a setting."""
    if not isinstance(setting, str):
        raise UsageError(f"Expected settings such as 'kappa=0.1'; found {setting!r}. Restore it.")
    path, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"Expected --set NAME=VALUE; found {setting!r}. For example: --set lr=0.001")
    prefix, _, name = path.rpartition(".")
    return prefix, name, value


def _names(combination: Combination, prefix: str) -> list[str] | None:
    """Names that a setting with this prefix can have in a combination; None if it does not apply to it."""
    names = combination.names()
    if not prefix:
        return [name for own in names.values() for name in own]
    if prefix == combination.algorithm:
        return names["algorithm"] + names["training"] + names["dataset"]
    return names.get(prefix)


def _narrower(having: Combination, setting: str) -> str:
    """Advice for a setting that only some combinations have."""
    _, name, value = _parsed(setting)
    owner = next(own for own, names in having.names().items() if name in names)
    prefix = having.algorithm if owner == "algorithm" else owner
    if owner in ("training", "dataset"):
        return f"Give datasets like {having.dataset.title} a command of their own."
    return f"Name what it is for: --set {prefix}.{name}={value}"


def _no_owner(setting: str, prefix: str, owners: set[str], where: str) -> UsageError:
    """Error for a prefix that is no part of what is run."""
    known = owners - {"algorithm", "training", "dataset"}
    if prefix in all_algorithms() or prefix in all_modifiers():
        option = where if prefix in all_algorithms() else "--with"
        advice = f"Add {prefix} to {option}, or leave out this setting." if where else "Leave out this setting."
        return UsageError(
            f"Expected a setting for what is run ({', '.join(sorted(known))}); found {setting!r}. {advice}"
        )
    return unknown("an algorithm or a modifier of what is run, in front of the setting's name,", prefix, known)


def _listed(combinations: Sequence[Combination], prefix: str) -> str:
    """Short text for combinations, for errors."""
    methods = list(dict.fromkeys(found.label for found in combinations))
    if prefix and prefix not in ("algorithm", "training", "dataset"):
        methods = [prefix]
    datasets = list(dict.fromkeys(found.dataset.title for found in combinations))
    text = ", ".join(methods) if len(methods) <= LISTED else f"{len(methods)} methods"
    return f"{text} on {', '.join(datasets)}"


def _settable(part: Any) -> list[str]:
    return [field.name for field in fields(part) if field.name not in getattr(part, "facts", ())]


def _set(parts: dict[str, Any], setting: str, kind: str) -> None:
    prefix, name, value = _parsed(setting)
    known = [(owner, field) for owner, part in parts.items() for field in _settable(part)]
    owners = [owner for owner, field in known if field == name and prefix in ("", owner)]
    if not owners:
        raise unknown(kind, setting.partition("=")[0], {field for _, field in known})
    if len(owners) > 1:
        choices = ", ".join(f"{owner}.{name}" for owner in owners)
        raise UsageError(f"Expected the name of one hyperparameter; found {name!r}, which is {choices}. Choose one.")
    parts[owners[0]] = changed(parts[owners[0]], {name: value})


def _domain(name: str, dataset: DomainDataset) -> int:
    """A domain by its name, its folder's name, or else its number."""
    domains = dataset.domains
    for names in (domains, getattr(dataset, "folders", ())):
        if name in names:
            return int(names.index(name))
    if name.isdecimal() and int(name) < len(domains):
        return int(name)
    raise unknown(f"a domain of {dataset.title}, by name or by number from 0 to {len(domains) - 1},", name, domains)
