"""A trial out of names and texts, as a command line has them; checked before anything is read or written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pogm.algorithms import algorithm_class
from pogm.benchmark.trial import Trial
from pogm.core.errors import UsageError, unknown
from pogm.core.hyper import changed, fields, suited
from pogm.datasets import all_datasets, dataset_class
from pogm.datasets.base import DomainDataset
from pogm.datasets.folder import Folder
from pogm.modifiers import modifier_class
from pogm.probes import Probe


def trial_of(
    dataset: str,
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
    given = dataset_of(dataset, data)
    method = algorithm_class(algorithm)
    parts: dict[str, Any] = {
        "algorithm": suited(method() if preset is None else method.preset(preset), given.large),
        "training": given.training,
        "dataset": given,
        **{name: suited(modifier_class(name)(), given.large) for name in modifiers},
    }
    if len(parts) < 3 + len(modifiers):
        raise UsageError(f"Expected each modifier once; found {', '.join(modifiers)}. Leave out the repeated one.")
    apply(settings, parts, f"a hyperparameter of {algorithm} on {given.title}")
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


def apply(settings: Sequence[str], parts: dict[str, Any], kind: str) -> None:
    """Change, for each text like "kappa=0.1", the one part that has a field of that name."""
    for setting in settings:
        if not isinstance(setting, str):
            raise UsageError(f"Expected settings such as 'kappa=0.1'; found {setting!r}. Restore it.")
        _set(parts, setting, kind)


def _set(parts: dict[str, Any], setting: str, kind: str) -> None:
    name, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"Expected --set NAME=VALUE; found {setting!r}. For example: --set lr=0.001")
    known = [
        (owner, field.name)
        for owner, part in parts.items()
        for field in fields(part)
        if field.name not in getattr(part, "facts", ())
    ]
    owners = [owner for owner, field in known if name in (field, f"{owner}.{field}")]
    for part in () if owners else parts.values():
        if text := getattr(part, "replaced", {}).get(name.rpartition(".")[2]):
            raise UsageError(f"Expected {kind}; found {name!r}, which was replaced by {text}.")
    if not owners:
        raise unknown(kind, name, {field for _, field in known})
    if len(owners) > 1:
        choices = ", ".join(f"{owner}.{name}" for owner in owners)
        raise UsageError(f"Expected the name of one hyperparameter; found {name!r}, which is {choices}. Choose one.")
    field = name.rpartition(".")[2]
    parts[owners[0]] = changed(parts[owners[0]], {field: value})


def _domain(name: str, dataset: DomainDataset) -> int:
    """A domain by its name, its folder's name, or else its number."""
    domains = dataset.domains
    for names in (domains, getattr(dataset, "folders", ())):
        if name in names:
            return int(names.index(name))
    if name.isdecimal() and int(name) < len(domains):
        return int(name)
    raise unknown(f"a domain of {dataset.title}, by name or by number from 0 to {len(domains) - 1},", name, domains)
