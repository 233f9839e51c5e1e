"""Descriptions of algorithms, modifiers, datasets and networks: docstring, paper and every hyperparameter."""

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.catalogue import costs, describe_needs, describe_overrides, domainbed_name, first_line
from pogm.benchmark.families import FAMILY
from pogm.core.hyperparameters import fields
from pogm.data.datasets import all_datasets, dataset_class
from pogm.models import all_networks, find_network_builder
from pogm.modifiers import all_modifiers, modifier_class

PAPER = re.compile(r"\(([^()]*(?:\d{4}|et al\.)[^()]*)\)")  # authors and year in the first line of a docstring


def describe(kind: str, name: str) -> dict[str, Any]:
    """Return the description of one algorithm, dataset, modifier or network, for ``pogm list``.

    Args:
        kind: "algorithms", "datasets", "modifiers" or "networks".
        name: A name of pogm or of a plug-in, or a path ``module:Name``.

    Raises:
        UsageError: If there is no such name.
    """
    return DESCRIBED[kind](name)


def describe_all(kind: str) -> list[dict[str, Any]]:
    """Return the descriptions of all names of a kind that pogm itself has."""
    names: dict[str, Callable[[], Iterable[str]]] = {
        "algorithms": all_algorithms,
        "datasets": all_datasets,
        "modifiers": all_modifiers,
        "networks": all_networks,
    }
    return [describe(kind, name) for name in names[kind]()]


def _algorithm(name: str) -> dict[str, Any]:
    found = algorithm_class(name)
    return {
        **_method(name, found),
        "presets": {preset: dict(values) for preset, values in found.presets.items()},
        "example": f"pogm run --dataset RotatedDigits --algorithm {name} --test-domain 75{_setting(found)} "
        f"--out runs/{found.__name__.lower()}",
    }


def _modifier(name: str) -> dict[str, Any]:
    found = modifier_class(name)
    return {
        **_method(name, found),
        "changes_training": found.changes_training,
        "example": f"pogm run --dataset RotatedDigits --algorithm ERM --with {name} --test-domain 75{_setting(found)} "
        f"--out runs/{found.__name__.lower()}",
    }


def _method(name: str, found: type[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "summary": first_line(found),
        "family": FAMILY.get(name),
        "paper": paper(found),
        "text": docstring(found),
        "domainbed": domainbed_name(name),
        "overrides": describe_overrides(found),
        "needs": describe_needs(found),
        "sees_at_test": found.sees_at_test,
        "cost": costs().get(name, {}),
        "hyperparameters": list(_hyperparameters(found())),
    }


def _dataset(name: str) -> dict[str, Any]:
    kind = dataset_class(name)
    found = kind()
    is_own = [field.name for field in fields(kind) if field.name not in getattr(kind, "facts", ())]
    data = "" if found.embedded else " --data FOLDER"
    domain = f" --test-domain={found.domains[0]}" if found.domains else " --test-domain DOMAIN"
    dataset = "FOLDER" if hasattr(kind, "facts") else name
    return {
        "name": name,
        "summary": first_line(kind),
        "paper": paper(kind),
        "text": docstring(kind),
        "embedded": found.embedded,
        "domains": list(found.domains),
        "classes": found.num_classes,
        "shape": list(found.input_shape),
        "steps": found.steps,
        "hyperparameters": [
            *(one for one in _hyperparameters(found) if one["name"] in is_own),
            *_hyperparameters(found.training),
        ],
        "example": f"pogm run --dataset {dataset}{data} --algorithm ERM{domain} --out runs/{kind.__name__.lower()}",
    }


def _network(name: str) -> dict[str, Any]:
    found = find_network_builder(name)
    text = "" if isinstance(found, type) or not hasattr(found, "__name__") else docstring(found)
    return {
        "name": name,
        "summary": text.partition("\n")[0],
        "paper": None,
        "text": text,
        "hyperparameters": [],
        "example": f"pogm run --dataset PACS --data FOLDER --algorithm ERM --test-domain sketch --set network={name} "
        f"--out runs/{name.replace('/', '_')}",
    }


DESCRIBED: dict[str, Callable[[str], dict[str, Any]]] = {
    "algorithms": _algorithm,
    "datasets": _dataset,
    "modifiers": _modifier,
    "networks": _network,
}


def description_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a description of `describe`."""
    yield found["name"]
    yield from (f"  {line}".rstrip() for line in found["text"].splitlines())
    if found["paper"]:
        yield f"\nPaper: {found['paper']}"
    if found.get("family"):
        yield f"Family: {found['family']}"
    if found.get("domains"):
        shape = "×".join(map(str, found["shape"]))
        yield f"Domains: {', '.join(found['domains'])}; {found['classes']} classes; {shape}; {found['steps']} steps"
    if found.get("domainbed"):
        yield f"Name in DomainBed: {found['domainbed']}"
    if found.get("overrides", "nothing") != "nothing":
        yield f"Overrides: {found['overrides']}"
    if found.get("needs", "nothing") != "nothing":
        yield f"Needs: {found['needs']}"
    if not found.get("changes_training", True):
        yield "Training: that of the algorithm alone; a sweep trains runs with and without it once"
    if found.get("sees_at_test"):
        yield f"Predictions also use: {found['sees_at_test']}"
    for setup, cost in found.get("cost", {}).items():
        yield f"Time · memory relative to ERM, {setup}: {cost['time']:.2f} · {cost['memory']:.2f}"
    if found.get("cost") == {}:
        yield "Time · memory relative to ERM: not measured"
    if found["hyperparameters"]:
        yield "\nHyperparameters, for --set NAME=VALUE:"
    for one in found["hyperparameters"]:
        search = f"; search {one['search']}" if one["search"] else ""
        yield f"  {one['name']} = {one['default']}  ({one['allowed']}{search})"
        if one["large_default"] is not None:
            space = f" (search {one['large_search']})" if one["large_search"] else ""
            yield f"      for large images: {one['large_default']}{space}"
        if one["help"]:
            yield f"      {one['help']}"
    for preset, values in found.get("presets", {}).items():
        yield f"\nPreset {preset}: {', '.join(f'{n}={v}' for n, v in values.items())}"
    yield f"\nExample: {found['example']}"


def paper(owner: Any) -> str | None:
    """Return the authors and the year from the first line of a docstring; None if it has none."""
    found = PAPER.search(first_line(owner))
    return found[1] if found else None


def docstring(owner: Any) -> str:
    """Return a docstring without the description of its arguments and without markup; equations stay LaTeX."""
    text = inspect.cleandoc(owner.__doc__ or "") + "\n"
    text = re.sub(r"\nArgs:\n(?:(?: .*)?\n)*", "\n", text).strip()
    return re.sub(r"(?::\w+:)?(`{1,2})([^`]+)\1", r"\2", text).replace(".. math::", "   ")  # markup of Sphinx


def _setting(found: type[Any]) -> str:
    """Return an option that sets the first searched hyperparameter to another value than its default."""
    for field in fields(found):
        if space := field.metadata.get("space"):
            draws = (space.draw(np.random.RandomState(seed)) for seed in range(100))
            value = next((value for value in draws if value != field.default), field.default)
            return f" --set {field.name}={value:.2g}" if isinstance(value, float) else f" --set {field.name}={value}"
    return ""


def _hyperparameters(owner: Any) -> Iterator[dict[str, Any]]:
    texts = describe_fields(type(owner))
    for field in fields(owner):
        space, large = field.metadata.get("space"), field.metadata.get("large")
        yield {
            "name": field.name,
            "default": getattr(owner, field.name),
            "allowed": allowed_text(field),
            "search": str(space) if space else None,
            "large_default": large.default if large else None,
            "large_search": str(large.space) if large and large.space else None,
            "help": texts.get(field.name, ""),
        }


def allowed_text(field: dataclasses.Field[Any]) -> str:
    """Return the allowed values of a hyperparameter in words."""
    limits = field.metadata
    if limits.get("options"):
        return " or ".join(limits["options"])
    bounds = [
        f"{sign} {limits[name]}" if isinstance(limits[name], int) else f"{sign} {limits[name]:g}"
        for name, sign in (("least", "≥"), ("above", ">"), ("most", "≤"))
        if limits.get(name) is not None
    ]
    kind = {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(type(field.default), "list")
    return " ".join([kind, " and ".join(bounds)]).strip()


def describe_fields(owner: type[Any]) -> dict[str, str]:
    """Return the description of every field of a class, from ``Args`` of a docstring or from its comment."""
    found: dict[str, str] = {}
    for kind in reversed(owner.__mro__):
        if dataclasses.is_dataclass(kind) or kind.__module__.startswith("pogm."):
            # The comment of the base class stays: a subclass comments on a new default, not on the meaning.
            found = _comments(kind) | found | _arguments(kind)
    return found


def _arguments(kind: type[Any]) -> dict[str, str]:
    _, _, listed = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _comments(kind: type[Any]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class that was defined without a file
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno:
            lines = [comments[number] for number in range(node.lineno, node.end_lineno + 1) if number in comments]
            if not lines:  # comments in the lines below the field
                number = node.end_lineno + 1
                while number in comments:
                    lines.append(comments[number])
                    number += 1
            if lines:
                text = " ".join(lines)
                found[node.target.id] = text[0].upper() + text[1:] if text[1:2].islower() else text
    return found
