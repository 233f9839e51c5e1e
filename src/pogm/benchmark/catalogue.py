"""What there is to choose from, as text: ``pogm list``."""

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from pogm.algorithms import Algorithm, all_algorithms
from pogm.core.hyperparameters import Space, fields
from pogm.data.datasets import all_datasets
from pogm.models import all_networks
from pogm.modifiers import Modifier, all_modifiers

RUNGS = ("loss", "gradient", "step")
HOOKS = ("network", "batch", "penalty", "risks", "after", "observe", "final", "predictor")


def algorithms() -> Iterator[str]:
    """Every algorithm with its paper and idea, what it needs and costs, its defaults, search spaces and presets."""
    for name, method in all_algorithms().items():
        yield from _method(name, method)
        yield from _hyperparameters(method())
        for preset, values in method.presets.items():
            yield f"  preset {preset}: {', '.join(f'{n}={v}' for n, v in values.items())}"


def datasets() -> Iterator[str]:
    """Every dataset with its domains and what it decides about training."""
    for name, dataset in all_datasets().items():
        source = "comes with the package" if dataset.embedded else "needs --data"
        shape = "×".join(map(str, dataset.input_shape))
        yield f"{name}  ({source})\n  {first_line(dataset)}"
        if dataset.domains:
            listed = ", ".join(dataset.domains)
            yield f"  domains {listed}; {dataset.num_classes} classes; {shape}; {dataset.steps} steps"
        yield from _hyperparameters(dataset.training)


def modifiers() -> Iterator[str]:
    """Every modifier with its paper and idea, what it costs, its defaults and search spaces."""
    for name, modifier in all_modifiers().items():
        yield from _method(name, modifier)
        yield from _hyperparameters(modifier())


def networks() -> Iterator[str]:
    """Every network by name."""
    yield from all_networks()
    yield "timm/NAME, any model of timm"


CATALOGUES = {catalogue.__name__: catalogue for catalogue in (algorithms, datasets, modifiers, networks)}


def _method(name: str, method: type[Algorithm] | type[Modifier]) -> Iterator[str]:
    yield f"{name}\n  {first_line(method)}"
    yield f"  overrides {overridden(method)}; needs {needs(method)}"
    if name in costs():
        yield f"  time · memory over ERM's: {'; '.join(f'{where} {cost}' for where, cost in costs()[name].items())}"


def overridden(method: type[Algorithm] | type[Modifier]) -> str:
    """The rung of the ladder that an algorithm is written on, or the hooks that a modifier uses."""
    if issubclass(method, Algorithm):
        found = [rung for rung in RUNGS if getattr(method, rung) is not getattr(Algorithm, rung)]
        return found[-1] if found else "nothing"
    return ", ".join(hook for hook in HOOKS if getattr(method, hook) is not getattr(Modifier, hook))


def needs(method: type[Algorithm] | type[Modifier]) -> str:
    """What a method asks for beyond minibatches and a network."""
    found = []
    if issubclass(method, Algorithm):
        if method.min_domains > 1:
            found.append(f"{method.min_domains} domains")
        if method.build is not Algorithm.build:
            found.append("networks of its own")
        if method().minibatches > 1:
            found.append(f"{method().minibatches} minibatches a step")
    if method.predicts_by:
        found.append("test images in batches of one domain")
    return ", ".join(found) or "nothing"


@cache
def costs() -> dict[str, dict[str, str]]:
    """What each method was measured to cost, as benchmarks/methods.py wrote it."""
    found = resources.files("pogm.benchmark") / "costs.json"
    costs: dict[str, dict[str, str]] = json.loads(found.read_text(encoding="utf-8")) if found.is_file() else {}
    return costs


def _hyperparameters(owner: Any) -> Iterator[str]:
    for field in fields(owner):
        space, options = field.metadata.get("space"), field.metadata.get("options")
        yield f"    {field.name:<22} {getattr(owner, field.name)!s:<12} {_searched(space, options)}".rstrip()
        if large := field.metadata.get("large"):
            yield f"      for large images     {large.default!s:<12} {_searched(large.space)}".rstrip()


def _searched(space: Space | None, options: tuple[str, ...] | None = None) -> str:
    return f"search {space}" if space else " | ".join(options or ())


def first_line(owner: type) -> str:
    """What it is."""
    return (owner.__doc__ or "").strip().splitlines()[0]
