"""Names of methods as trials have them, and their combinations with datasets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.core.hyperparameters import fields
from pogm.core.plugins import registered_name, short_name
from pogm.data.datasets.base import DomainDataset
from pogm.modifiers import all_modifiers, modifier_class


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

    @classmethod
    def parse(cls, method: str, dataset: DomainDataset, modifiers: Sequence[str] = ()) -> "Combination":
        """Return the combination for a method such as "ERM" or "ERM + SWAD", and modifiers that come first."""
        algorithm, own = split_method(method)
        return cls(algorithm, (*modifiers, *own), dataset)

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
        return {owner: settable_names(part) for owner, part in parts.items()}

    def part(self, prefix: str) -> str:
        """Return the part that the prefix of a setting names; a class of another package also has its short name."""
        parts = (self.algorithm, *self.modifiers)
        return next((part for part in parts if prefix in (part, short_name(part))), prefix)

    def names_after(self, prefix: str) -> list[str] | None:
        """Return the names that a setting with this prefix can have; None if the prefix is no part of this."""
        names = self.names()
        if not prefix:
            return [name for part in names.values() for name in part]
        part = self.part(prefix)
        if part == self.algorithm:
            return names["algorithm"] + names["training"] + names["dataset"]
        return names.get(part)


def settable_names(part: Any) -> list[str]:
    """Return the names of the hyperparameters of a part of a trial that a setting can change."""
    return [field.name for field in fields(part) if field.name not in getattr(part, "facts", ())]


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
                f"train and pogm sweep: 'ERM + {name}')."
            )
    return tuple(registered_name(algorithm_class(name)) for name in names)


def modifier_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of modifiers as trials have them: the path of a modifier of another package."""
    return tuple(registered_name(modifier_class(name)) for name in names)


def split_method(method: str) -> tuple[str, tuple[str, ...]]:
    """Return the names of the algorithm and of the modifiers of a method such as "ERM" or "ERM + SWAD"."""
    known = all_algorithms().has(method)  # the name of a plug-in may contain a plus sign
    algorithm, *modifiers = names = [method] if known else [name.strip() for name in method.split("+")]
    if not all(names):
        raise UsageError(f"Expected a method such as 'ERM + SWAD', in quotes; found {method!r}. Write it as one word.")
    return algorithm_names([algorithm])[0], modifier_names(modifiers)
