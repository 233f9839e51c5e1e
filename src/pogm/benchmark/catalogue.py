"""What there is to choose from, as text: ``pogm list``."""

from collections.abc import Iterator
from typing import Any

from pogm.algorithms import all_algorithms
from pogm.core.hyper import fields
from pogm.datasets import all_datasets
from pogm.modifiers import all_modifiers
from pogm.networks import all_networks


def algorithms() -> Iterator[str]:
    """Every algorithm with its defaults, search spaces and presets."""
    for name, method in all_algorithms().items():
        yield f"{name}\n  {_first_line(method)}"
        yield from _hyperparameters(method())
        for preset, values in method.presets.items():
            yield f"  preset {preset}: {', '.join(f'{n}={v}' for n, v in values.items())}"


def datasets() -> Iterator[str]:
    """Every dataset with its domains and what it decides about training."""
    for name, dataset in all_datasets().items():
        source = "comes with the package" if dataset.embedded else "needs --data"
        shape = "×".join(map(str, dataset.input_shape))
        yield f"{name}  ({source})\n  {_first_line(dataset)}"
        yield f"  domains {', '.join(dataset.domains)}; {dataset.num_classes} classes; {shape}; {dataset.steps} steps"
        yield from _hyperparameters(dataset.training)


def modifiers() -> Iterator[str]:
    """Every modifier with its defaults and search spaces."""
    for name, modifier in all_modifiers().items():
        yield f"{name}\n  {_first_line(modifier)}"
        yield from _hyperparameters(modifier())


def networks() -> Iterator[str]:
    """Every network by name."""
    yield from all_networks()


CATALOGUES = {catalogue.__name__: catalogue for catalogue in (algorithms, datasets, modifiers, networks)}


def _hyperparameters(owner: Any) -> Iterator[str]:
    for field in fields(owner):
        space, options = field.metadata.get("space"), field.metadata.get("options")
        note = f"search {space}" if space else " | ".join(options or ())
        yield f"    {field.name:<22} {getattr(owner, field.name)!s:<12} {note}".rstrip()


def _first_line(owner: type) -> str:
    return (owner.__doc__ or "").strip().splitlines()[0]
