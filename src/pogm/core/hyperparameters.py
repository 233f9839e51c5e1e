"""Hyperparameters: the default, the allowed values and the search space, on the field itself."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from pogm._system.errors import UsageError, unknown


class Source(Protocol):
    """What a space draws from: ``numpy.random.RandomState``, or anything that draws like it."""

    def uniform(self, low: float, high: float) -> float:
        """A number between two."""

    def choice(self, values: Any) -> Any:
        """One of several."""


class Space(Protocol):
    """A distribution of values to search."""

    def draw(self, source: Source) -> Any:
        """One value."""


@dataclass(frozen=True, init=False)
class Choice:
    """One of the values, all equally likely."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any):
        object.__setattr__(self, "values", values)

    def draw(self, source: Source) -> Any:
        """One value, as a plain Python number or string."""
        drawn = source.choice(list(self.values))
        return drawn.item() if hasattr(drawn, "item") else drawn

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.values)) + "}"


@dataclass(frozen=True)
class Uniform:
    """Uniform between two numbers; truncated when ``integer``."""

    low: float
    high: float
    integer: bool = False

    def draw(self, source: Source) -> float | int:
        """One value."""
        value = float(source.uniform(self.low, self.high))
        return int(value) if self.integer else value

    def __str__(self) -> str:
        text = f"U({self.low:g}, {self.high:g})"
        return f"int {text}" if self.integer else text


@dataclass(frozen=True)
class Power:
    """base^U(low, high); truncated when ``integer``."""

    base: float
    low: float
    high: float
    integer: bool = False

    def draw(self, source: Source) -> float | int:
        """One value."""
        value = float(self.base ** source.uniform(self.low, self.high))
        return int(value) if self.integer else value

    def __str__(self) -> str:
        text = f"{self.base:g}^U({self.low:g}, {self.high:g})"
        return f"int {text}" if self.integer else text


@dataclass(frozen=True)
class Large:
    """Another default and space, for datasets of large images."""

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
    """A field with a default, a search space and the values it may take.

    ``large`` is for methods that were tuned on small and large images apart. ``draw_as`` is the name the random draw
    is seeded with, where published searches used another one. ``added_later`` leaves the field out of saved trials at
    its default, so that trials of earlier versions, which do not have the field, keep their ids.
    """
    limits = {"least": least, "above": above, "most": most, "options": options}
    metadata = {"space": space, "large": large, "draw_as": draw_as, "added_later": added_later, **limits}
    return dataclasses.field(default=default, metadata=metadata)


def to_json(settings: Any) -> dict[str, Any]:
    """Return the fields as plain values, in the form that saved trials have and their ids are computed from.

    Fields of earlier versions that no longer exist (``former_fields``) are written with the only value still supported.
    """
    kept = [
        f for f in fields(settings) if not (f.metadata.get("added_later") and getattr(settings, f.name) == f.default)
    ]
    return getattr(settings, "former_fields", {}) | {f.name: getattr(settings, f.name) for f in kept}


def from_json(settings: Any, values: dict[str, Any]) -> Any:
    """Return a copy of the settings with the values that `to_json` returned."""
    former = getattr(settings, "former_fields", {})
    return changed(settings, {name: value for name, value in values.items() if former.get(name) != value})


def suited(settings: Any, large: bool) -> Any:
    """A copy with the defaults for large images, if they are; what was changed before stays as it is."""
    found = {field.name: field for field in fields(settings) if large and field.metadata.get("large")}
    kept = {name: field for name, field in found.items() if getattr(settings, name) == field.default}
    return changed(settings, {name: field.metadata["large"].default for name, field in kept.items()})


def fields(settings: Any) -> list[dataclasses.Field[Any]]:
    """The hyperparameters of a class or an instance."""
    return [field for field in dataclasses.fields(settings) if field.init]


def validate(settings: Any) -> None:
    """Check every field against its type and limits. Tensors (a batch of trials) were checked one by one before."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if not isinstance(value, Tensor):
            coerced = _checked(type(settings).__name__, field, value)
            object.__setattr__(settings, field.name, coerced)


def changed(settings: Any, values: dict[str, Any]) -> Any:
    """A copy with some fields set; texts, as a command line has them, are read by the field's type."""
    names = [field.name for field in fields(settings)]
    for name in values:
        if name not in names and name in getattr(settings, "replaced", {}):
            owner = type(settings)
            text = f"Expected a hyperparameter of {owner.__name__}; {name!r} was replaced by {owner.replaced[name]}."
            raise UsageError(text)
        if name not in names:
            raise unknown(f"a hyperparameter of {type(settings).__name__}", name, names)
    return dataclasses.replace(settings, **values)


def _checked(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    wanted = _expected(field)
    found = _converted(field, value)
    limits = field.metadata
    wrong = found is None
    if isinstance(found, float | int) and not isinstance(found, bool):
        wrong = (
            not math.isfinite(found)
            or (limits.get("least") is not None and found < limits["least"])
            or (limits.get("above") is not None and found <= limits["above"])
            or (limits.get("most") is not None and found > limits["most"])
        )
    elif isinstance(found, str) and found not in (limits.get("options") or (found,)):
        raise unknown(f"{owner}.{field.name}", found, limits["options"])
    if wrong:
        raise UsageError(
            f"Expected {owner}.{field.name} to be {wanted}; found {value!r}. "
            f"Leave it out for its default, {field.default!r}."
        )
    return found


def _converted(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value in the field's type, or None where it does not fit."""
    kind: Any = type(field.default)
    if kind is bool:
        named = {"true": True, "false": False, "1": True, "0": False}
        return value if isinstance(value, bool) else named.get(str(value).lower())
    if kind in (int, float):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None
        if kind is float:
            return number
        return int(number) if math.isfinite(number) and number == int(number) else None
    if kind is tuple:  # of texts; JSON has lists
        fits = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        return tuple(value) if fits else None
    return value if isinstance(value, kind) else None


def _expected(field: dataclasses.Field[Any]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}
    text = words.get(type(field.default), type(field.default).__name__)
    limits = field.metadata
    if limits.get("least") is not None:
        text += f" of at least {limits['least']:g}"
    if limits.get("above") is not None:
        text += f" above {limits['above']:g}"
    if limits.get("most") is not None:
        text += f" and at most {limits['most']:g}"
    return text
