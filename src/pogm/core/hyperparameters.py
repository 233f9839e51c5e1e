"""Hyperparameters: dataclass fields with a default, allowed values and a search space.

The owner of hyperparameters is a dataclass: an algorithm, a modifier, a probe, or the training of a dataset.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from pogm._system.errors import UsageError, shorten, unknown_name_error

MOST_STEPS = 10**8  # largest whole number without another limit: minibatches of a run
MOST = 1e30  # largest number without another limit: its square is finite in float64, and the number in float32
MOST_SAMPLES = 2**20  # of a minibatch
MOST_WIDTH = 2**14  # of a layer


class Source(Protocol):
    """Source of random numbers for a search space, such as ``numpy.random.RandomState``."""

    def uniform(self, low: float, high: float) -> float:
        """Draw a number from U(low, high)."""

    def choice(self, values: Any) -> Any:
        """Draw one of the values, all equally likely."""


class Space(Protocol):
    """Distribution of the values of a hyperparameter in a random search."""

    def draw(self, source: Source) -> Any:
        """Draw one value."""


@dataclass(frozen=True, init=False)
class Choice:
    """Uniform distribution over a few values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any):
        object.__setattr__(self, "values", values)

    def draw(self, source: Source) -> Any:
        """Draw one value, as a plain Python number or string."""
        drawn = source.choice(list(self.values))
        return drawn.item() if hasattr(drawn, "item") else drawn

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.values)) + "}"


@dataclass(frozen=True)
class Uniform:
    """U(low, high), truncated to an integer if ``integer`` is set."""

    low: float
    high: float
    integer: bool = False

    def draw(self, source: Source) -> float | int:
        """Draw one value."""
        value = float(source.uniform(self.low, self.high))
        return int(value) if self.integer else value

    def __str__(self) -> str:
        text = f"U({self.low:g}, {self.high:g})"
        return f"int {text}" if self.integer else text


@dataclass(frozen=True)
class Power:
    """base^U(low, high), truncated to an integer if ``integer`` is set."""

    base: float
    low: float
    high: float
    integer: bool = False

    def draw(self, source: Source) -> float | int:
        """Draw one value."""
        value = float(self.base ** source.uniform(self.low, self.high))
        return int(value) if self.integer else value

    def __str__(self) -> str:
        text = f"{self.base:g}^U({self.low:g}, {self.high:g})"
        return f"int {text}" if self.integer else text


@dataclass(frozen=True)
class Large:
    """Default and search space for datasets of large images."""

    default: Any
    space: Space | None = None


def hyper(
    default: Any,
    space: Space | None = None,
    *,
    large: Large | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    options: tuple[str, ...] | None = None,
    draw_as: str | None = None,
    added_later: bool = False,
) -> Any:
    """Return a dataclass field for a hyperparameter.

    Args:
        default: Default value. Its type is the type of the field.
        space: Search space.
        large: Other default and space for large images, for methods that were tuned separately on them.
        least: Smallest allowed value (default: minus the largest).
        above: Exclusive lower bound.
        most: Largest allowed value (default: 1e30, or 1e8 for a whole number). Sizes of layers and minibatches need
            a smaller one, so that a mistake is found before memory is allocated.
        options: Allowed texts.
        draw_as: Name that seeds the random draw, if published searches used another name than the field has.
        added_later: Leave the field out of saved trials at its default, so that trials of earlier versions, which do
            not have the field, keep their ids.
    """
    limits = {"least": least, "above": above, "most": most, "options": options}
    metadata = {"space": space, "large": large, "draw_as": draw_as, "added_later": added_later, **limits}
    return dataclasses.field(default=default, metadata=metadata)


def to_json(owner: Any) -> dict[str, Any]:
    """Return the fields as plain values, in the form that saved trials have and their ids are computed from.

    Fields of earlier versions that no longer exist (``former_fields``) are written with the only value still supported.
    """
    kept = [f for f in fields(owner) if not (f.metadata.get("added_later") and getattr(owner, f.name) == f.default)]
    return getattr(owner, "former_fields", {}) | {f.name: getattr(owner, f.name) for f in kept}


def from_json(owner: Any, values: dict[str, Any]) -> Any:
    """Return a copy with the values that `to_json` returned."""
    former = getattr(owner, "former_fields", {})
    kept = {name: value for name, value in values.items() if name not in former or former[name] != value}
    return replace_fields(owner, kept)


def apply_large_defaults(owner: Any, large: bool) -> Any:
    """Return a copy with the defaults for large images if ``large`` is set. Fields that were changed stay."""
    found = {field.name: field for field in fields(owner) if large and field.metadata.get("large")}
    kept = {name: field for name, field in found.items() if getattr(owner, name) == field.default}
    return replace_fields(owner, {name: field.metadata["large"].default for name, field in kept.items()})


def fields(owner: Any) -> list[dataclasses.Field[Any]]:
    """Return the hyperparameters of a class or an instance."""
    return [field for field in dataclasses.fields(owner) if field.init]


def limits(field: dataclasses.Field[Any]) -> tuple[float, float]:
    """Return the smallest and the largest value of a hyperparameter that is a number."""
    found = field.metadata
    most = found.get("most")
    if most is None:
        most = MOST_STEPS if isinstance(field.default, int) else MOST
    bounds = [bound for bound in (found.get("least"), found.get("above")) if bound is not None]
    return max(bounds, default=-most), most


def validate(owner: Any) -> None:
    """Check every field against its type and limits, and convert it to its type.

    Tensors are skipped: they hold the values of several trials, each of which was checked before. Modules are skipped,
    too: the class that takes one checks it.

    Raises:
        UsageError: A value has the wrong type or is outside its limits.
    """
    for field in fields(owner):
        value = getattr(owner, field.name)
        if not isinstance(value, Tensor | nn.Module):
            coerced = _check(type(owner).__name__, field, value)
            object.__setattr__(owner, field.name, coerced)


def replace_fields(owner: Any, values: dict[str, Any]) -> Any:
    """Return a copy with some fields replaced. Texts from a command line are converted to the type of the field."""
    names = [field.name for field in fields(owner)]
    for name in values:
        if name not in names and name in getattr(owner, "replaced", {}):
            title, instead = type(owner).__name__, owner.replaced[name]
            text = f"Expected a hyperparameter of {title}; {name!r} was replaced by {instead}."
            raise UsageError(text)
        if name not in names:
            raise unknown_name_error(f"a hyperparameter of {type(owner).__name__}", name, names)
    return dataclasses.replace(owner, **values)


def _check(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    found = _convert(field, value)
    wrong = found is None
    if isinstance(found, float | int) and not isinstance(found, bool):
        least, most = limits(field)
        above = field.metadata.get("above")
        wrong = not least <= found <= most or (above is not None and found <= above)  # also refuses nan
    elif isinstance(found, str) and found not in (field.metadata.get("options") or (found,)):
        raise unknown_name_error(f"{owner}.{field.name}", found, field.metadata["options"])
    if wrong:
        raise UsageError(
            f"Expected {owner}.{field.name} to be {_describe_expected(field)}; found {shorten(value)}. "
            f"Leave it out for its default, {field.default!r}."
        )
    return found


def _convert(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return the value in the type of the field, or None if it cannot be converted."""
    kind: Any = type(field.default)
    if kind is bool:
        named = {"true": True, "false": False, "1": True, "0": False}
        return value if isinstance(value, bool) else named.get(str(value).lower())
    if kind in (int, float):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        if kind is float:
            return number
        return int(number) if math.isfinite(number) and number == int(number) else None
    if kind is tuple:  # of texts; JSON stores tuples as lists
        fits = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        return tuple(value) if fits else None
    return value if isinstance(value, kind) else None


def _describe_expected(field: dataclasses.Field[Any]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}
    text = words.get(type(field.default), type(field.default).__name__)
    if type(field.default) not in (int, float):
        return text
    least, most = limits(field)
    above = field.metadata.get("above")
    return f"{text} {f'of at least {least}' if above is None else f'above {above}'} and at most {most}"
