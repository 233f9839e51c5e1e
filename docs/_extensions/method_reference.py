"""Markdown of algorithms, modifiers, datasets and metrics, with every hyperparameter, from their classes."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from pogm.algorithms import all_algorithms
from pogm.benchmark.catalogue import describe_needs, first_line
from pogm.benchmark.descriptions import describe_fields
from pogm.benchmark.families import FAMILY
from pogm.benchmark.results.classification import ClassificationMetrics
from pogm.benchmark.results.regression import RegressionMetrics
from pogm.core.hyperparameters import fields
from pogm.data.datasets import DomainDataset, all_datasets
from pogm.models import all_networks
from pogm.modifiers import all_modifiers
from pogm.trackers import all_trackers


def algorithm_reference() -> str:
    """Return a section for every algorithm."""
    return _methods(all_algorithms())


def modifier_reference() -> str:
    """Return a section for every modifier."""
    return _methods(all_modifiers())


def dataset_reference() -> str:
    """Return a table of the datasets, and the training settings that each kind of dataset has."""
    instances = {name: kind() for name, kind in all_datasets().items()}
    rows = [
        (f"`{name}`", first_line(type(one)), _domains(one), str(one.steps), f"`{type(one.training).__name__}`")
        for name, one in instances.items()
    ]
    parts = [_table(("dataset", "description", "domains", "minibatches", "training settings"), rows)]
    parts.append("## Training settings")
    parts.append("Change them by `--set NAME=VALUE`.")
    kinds = {type(one.training): None for one in sorted(instances.values(), key=_settings_order)}
    for kind in kinds:
        users = ", ".join(f"`{name}`" for name, one in instances.items() if type(one.training) is kind)
        parts += [f"### {kind.__name__}", f"{first_line(kind)} Used by {users}.", _hyperparameters(kind)]
    parts += ["## Options of image datasets", _hyperparameters(all_datasets()["PACS"])]
    return "\n\n".join(parts)


def _settings_order(dataset: DomainDataset) -> tuple[int, str]:
    return len(type(dataset.training).__mro__), type(dataset.training).__name__


def _domains(dataset: DomainDataset) -> str:
    return ", ".join(dataset.domains) if dataset.domains else "yours"


def network_reference() -> str:
    """Return the names of the networks."""
    return "\n".join([*(f"- `{name}`" for name in all_networks()), "- `timm/NAME`: any model of timm"])


def tracker_reference() -> str:
    """Return a table of the trackers."""
    return _table(("tracker", "description"), [(f"`{n}`", first_line(t)) for n, t in all_trackers().items()])


def metric_reference() -> str:
    """Return tables of the metrics of the selected model."""
    parts = []
    for kind in (ClassificationMetrics, RegressionMetrics):
        described = describe_fields(kind)
        rows = [(f"`{name}`", described.get(name, "")) for name in kind.__annotations__]
        parts += [f"**{first_line(kind)}**", _table(("name", "meaning"), rows)]
    return "\n\n".join(parts)


def _methods(classes: Mapping[str, type[Any]]) -> str:
    """Return a section for every class: docstring without ``Args``, family, requirements, and hyperparameters."""
    parts = []
    for name, kind in classes.items():
        text = re.sub(r"\nArgs:\n(?:(?: .*)?\n)*", "\n", inspect.cleandoc(kind.__doc__ or "") + "\n")
        body = textwrap.indent(text, "   ")
        parts += [f"## {name}", f"```{{eval-rst}}\n.. py:class:: pogm.{name}\n\n{body}\n```"]
        if name in FAMILY:
            parts.append(f"Family: {FAMILY[name]}.")
        if (needs := describe_needs(kind)) != "nothing":
            parts.append(f"Needs: {needs}.")
        if getattr(kind, "sees_at_test", ""):
            parts.append(f"Predictions also use {kind.sees_at_test}.")
        parts.append(_hyperparameters(kind) if fields(kind) else "No hyperparameters.")
        for preset, values in getattr(kind, "presets", {}).items():
            parts.append(f"Preset `{preset}`: " + ", ".join(f"`{n}={v}`" for n, v in values.items()))
    return "\n\n".join(parts)


def _hyperparameters(owner: type[Any]) -> str:
    """Return the table of the hyperparameters of a class: name, default, allowed values, search space, meaning.

    Raises:
        ValueError: A hyperparameter has no description.
    """
    described = describe_fields(owner)
    rows = []
    for field in fields(owner):
        if not described.get(field.name):
            raise ValueError(f"{owner.__name__}.{field.name} has no description: add a comment or a line in Args")
        space, large = field.metadata.get("space"), field.metadata.get("large")
        default, search = f"`{field.default}`", f"`{space}`" if space else "–"
        if large:
            default += f"; large images: `{large.default}`"
            search += f"; large images: `{large.space}`" if large.space else ""
        rows.append((f"`{field.name}`", default, _allowed(field), search, described[field.name]))
    return _table(("name", "default", "allowed", "search", "meaning"), rows)


def _allowed(field: dataclasses.Field[Any]) -> str:
    limits = field.metadata
    if limits.get("options"):
        return ", ".join(f"`{option}`" for option in limits["options"])
    bounds = [
        f"{sign} {limits[name]:g}"
        for name, sign in (("least", "≥"), ("above", ">"), ("most", "≤"))
        if limits.get(name) is not None
    ]
    kind = {bool: "true, false", int: "integer", float: "number", str: "text"}.get(type(field.default), "list")
    return " ".join([kind, " and ".join(bounds)]).strip()


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(list(head)), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
