"""Names that a shell suggests after an option: algorithms, datasets, modifiers, networks, experiments, hyperparameters.

argcomplete calls the functions of `COMPLETERS`. They read the source files of the package instead of importing them,
because torch takes seconds to import. The names of plug-ins come from their entry points.
"""

import argparse
import ast
import glob
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASES = {"algorithms": "Algorithm", "data/datasets": "DomainDataset", "modifiers": "Modifier"}
SCALES = ("embedded", "small", "features", "mnist", "pacs", "office_caltech", "full")
TRACKERS = ("mlflow", "tensorboard", "wandb")
Completer = Callable[..., list[str]]


def algorithm_names() -> list[str]:
    """Return the names of the algorithms of pogm and of plug-ins."""
    return [*_registered("algorithms"), *_plugins("algorithms")]


def dataset_names() -> list[str]:
    """Return the names of the datasets that are chosen by name."""
    folder = "data/datasets"
    named = [name for name in _registered(folder) if not any("facts" in _names(one) for one in _mro(folder, name))]
    return [*named, *_plugins("datasets")]


def modifier_names() -> list[str]:
    """Return the names of the modifiers of pogm and of plug-ins."""
    return [*_registered("modifiers"), *_plugins("modifiers")]


def network_names() -> list[str]:
    """Return the names of the networks of pogm and of plug-ins."""
    found: list[str] = []
    for path, module in _modules("models"):
        names = _names(module)
        if "build" in names:
            found.append(path.stem)
        if isinstance(value := names.get("NETWORKS"), ast.Dict):
            found += [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
    return [*sorted(found), *_plugins("networks")]


def experiment_names() -> list[str]:
    """Return the names of the experiments, and "paper" and "all"."""
    files = [path.stem for path, module in _modules("experiments") if {"plan", "exhibits"} <= _names(module).keys()]
    return [*sorted(files), "paper", "all"]


def setting_names(values: argparse.Namespace | None = None) -> list[str]:
    """Return ``NAME=`` for every hyperparameter of the algorithms, modifiers and datasets of a command line.

    Args:
        values: What was read so far; without an algorithm in it, the hyperparameters of all algorithms are returned.
    """
    algorithms = _given(values, "algorithm", "algorithms", "compare") or _registered("algorithms")
    datasets = _given(values, "dataset", "datasets") or _registered("data/datasets")
    found = [name for one in algorithms for name in _hyperparameters("algorithms", one)]
    found += [name for one in _given(values, "modifiers") for name in _hyperparameters("modifiers", one)]
    found += [name for one in datasets for name in _training_settings(one)]
    return sorted({f"{name}=" for name in found})


def listed_names(values: argparse.Namespace | None = None) -> list[str]:
    """Return the names of the kind that ``pogm list KIND`` lists."""
    kinds = {
        "algorithms": algorithm_names,
        "datasets": dataset_names,
        "modifiers": modifier_names,
        "networks": network_names,
    }
    found = kinds.get(getattr(values, "what", ""))
    return found() if found else []


COMPLETERS: dict[str, Callable[[argparse.Namespace | None], list[str]]] = {
    "algorithms": lambda values: algorithm_names(),
    "datasets": lambda values: dataset_names(),
    "modifiers": lambda values: modifier_names(),
    "networks": lambda values: network_names(),
    "experiments": lambda values: experiment_names(),
    "scales": lambda values: list(SCALES),
    "trackers": lambda values: list(TRACKERS),
    "settings": setting_names,
    "listed": listed_names,
}


def add_completer(action: argparse.Action, name: str) -> None:
    """Let argcomplete suggest names for an action."""
    if name:
        action.completer = partial(_complete, name)  # type: ignore[attr-defined]


def _complete(name: str, prefix: str, parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    owner, dot, _rest = prefix.partition(".")
    if name == "settings" and dot:  # ALGORITHM.NAME=VALUE
        own = (*_hyperparameters("algorithms", owner), *_hyperparameters("modifiers", owner))
        names = [f"{owner}.{one}=" for one in own]
    else:
        names = COMPLETERS[name](parsed_args)
    found = [one for one in names if one.startswith(prefix)]
    return found + _paths(prefix) if name == "datasets" and prefix else found


def _paths(prefix: str) -> list[str]:
    """Return files and folders. bash adds them itself to an option that has no suggestions; zsh does not."""
    return sorted(f"{path}/" if os.path.isdir(path) else path for path in glob.glob(f"{glob.escape(prefix)}*"))


def _given(values: argparse.Namespace | None, *names: str) -> list[str]:
    """Return the words that some options were given."""
    found: list[str] = []
    for value in (getattr(values, name, None) for name in names):
        found += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return found


def _plugins(kind: str) -> list[str]:
    from importlib.metadata import entry_points  # slow to import, and --help does not need it

    return sorted({entry.name for entry in entry_points(group=f"pogm.{kind}")})


@cache
def _modules(folder: str) -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_bytes())) for path in sorted((ROOT / folder).glob("[!_]*.py"))]


def _names(owner: ast.Module | ast.ClassDef) -> dict[str, ast.AST | None]:
    """Return the names that a module or class defines, with the values of assignments."""
    found: dict[str, ast.AST | None] = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: None for alias in node.names}
    return found


@cache
def _classes(folder: str) -> dict[str, ast.ClassDef]:
    nodes = [node for _, module in _modules(folder) for node in module.body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in nodes}


def _mro(folder: str, name: str) -> Iterator[ast.ClassDef]:
    """Yield a class of a folder, then its base classes in that folder."""
    found = _classes(folder).get(name)
    if found is not None:
        yield found
        for base in found.bases:
            yield from _mro(folder, base.id if isinstance(base, ast.Name) else "")


@cache
def _registered(folder: str) -> tuple[str, ...]:
    """Return the classes that ``core.registry.Registry`` finds in a folder."""
    return tuple(
        name
        for name, node in sorted(_classes(folder).items())
        if name != BASES[folder] and "abstract" not in _names(node)
        if any(one.name == BASES[folder] for one in _mro(folder, name))
    )


def _hyperparameters(folder: str, name: str) -> list[str]:
    """Return the fields of a class that are made by ``hyper``."""
    return [
        field
        for one in _mro(folder, name)
        for field, value in _names(one).items()
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "hyper"
    ]


def _training_settings(dataset: str) -> list[str]:
    """Return the hyperparameters of a dataset and of its training settings; those of all datasets for a path."""
    folder = "data/datasets"
    facts = {
        item.value
        for one in _mro(folder, dataset)
        if isinstance(value := _names(one).get("facts"), ast.Tuple)
        for item in value.elts
        if isinstance(item, ast.Constant)
    }
    own = [name for name in _hyperparameters(folder, dataset) if name not in facts]
    kinds = [
        kind
        for kind in _classes(folder)
        if any(one.name == "Training" for one in _mro(folder, kind))
        if dataset not in _classes(folder) or any(_mentions(one, kind) for one in _mro(folder, dataset))
    ]
    return [*own, *(name for kind in kinds for name in _hyperparameters(folder, kind))]


def _mentions(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))
