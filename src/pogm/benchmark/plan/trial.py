"""A trial: what one run computes, as plain data that can be written, compared and hashed."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown
from pogm._system.files import canonical_json, digest
from pogm.algorithms import Algorithm, algorithm_class
from pogm.core.hyperparameters import changed, from_json, to_json
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import Domain, DomainDataset, Training
from pogm.diagnostics import Probe
from pogm.engine.setup import PRECISIONS
from pogm.engine.task import Task
from pogm.engine.trainer import Schedule
from pogm.models import check_network
from pogm.modifiers import Modifier, modifier_class

LIMITS = {
    "steps": (1, 10**8),
    "evaluate_every": (1, 10**8),
    "seed": (0, 2**63 - 1),
    "data_seed": (0, 2**63 - 1),
    "trial_seed": (0, 2**63 - 1),
    "hparams_seed": (0, 2**63 - 1),
}
JSON_TYPES = {  # of the fields that are not whole numbers
    "precision": str,
    "dataset": dict,
    "algorithm": dict,
    "training": dict,
    "probe": dict,
    "modifiers": list,
    "test_domains": list,
}
ABSENT = object()


@dataclass(frozen=True)
class Trial:
    """One algorithm, with its modifiers, on one dataset with some domains held out. Paths are no part of it."""

    dataset: DomainDataset
    algorithm: Algorithm
    test_domains: tuple[int, ...]
    training: Training
    steps: int
    evaluate_every: int
    modifiers: tuple[Modifier, ...] = ()
    seed: int = 0  # of the weights and the minibatches
    data_seed: int = 0  # of the data's construction, where that is random; in DomainBed's protocol, the seed
    trial_seed: int = 0  # of the split into training and validation images
    hparams_seed: int = 0  # which draw of the search this is; 0 for the defaults
    precision: str = "fp32"
    probe: Probe = Probe()  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        domains = self.dataset.domains
        tested = self.test_domains
        whole = all(_is_whole(t, 0, len(domains) - 1) for t in tested)
        if not tested or not whole or len(set(tested)) < len(tested):
            raise UsageError(
                f"Expected test domains of {self.dataset.title}, each once: "
                f"{', '.join(f'{i} ({name})' for i, name in enumerate(domains))}; found {list(tested)}. "
                "Name those to hold out."
            )
        left, least = len(domains) - len(tested), self.algorithm.min_domains
        if left < least:
            raise UsageError(
                f"Expected at least {least} training domain{'s' * (least > 1)} for {type(self.algorithm).__name__}; "
                f"found {left} left of {self.dataset.title}'s {len(domains)}. Hold out fewer of them."
            )
        for name, (least, most) in LIMITS.items():
            if not _is_whole(getattr(self, name), least, most):
                raise UsageError(
                    f"Expected {name} to be a whole number from {least} to {most}; found {getattr(self, name)!r}. "
                    "Choose one in that range."
                )
        if self.precision not in PRECISIONS:
            raise unknown("a precision", self.precision, PRECISIONS)
        check_network(self.training.network, self.training.weights)

    @property
    def train_domains(self) -> tuple[int, ...]:
        """The domains that are not held out."""
        return tuple(i for i in range(len(self.dataset.domains)) if i not in self.test_domains)

    @property
    def label(self) -> str:
        """Its name in a table, such as "POGM + Mixup"."""
        return " + ".join(type(part).__name__ for part in (self.algorithm, *self.modifiers))

    @property
    def id(self) -> str:
        """The hash of what is computed: the same on every machine, wherever the data lies."""
        values = self.to_json()
        values["dataset"].pop("title", None)  # a folder of images may be renamed
        return digest(canonical_json(values).encode())[:16]

    @property
    def schedule(self) -> Schedule:
        """How long it trains and when it is evaluated."""
        return Schedule(self.steps, self.evaluate_every)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "dataset": self.dataset.to_json(),
            "algorithm": _named(self.algorithm),
            "modifiers": [_named(modifier) for modifier in self.modifiers],
            "training": dataclasses.asdict(self.training),
            "probe": dataclasses.asdict(self.probe),
            "test_domains": list(self.test_domains),
        }

    @classmethod
    def from_json(cls, values: Any) -> "Trial":
        """From what ``to_json`` gave; anything missing, extra or of another type is refused."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or names - values.keys():
            found = sorted(values) if isinstance(values, dict) else values
            raise UsageError(
                f"Expected a trial with the fields {', '.join(sorted(names))}; found {found!r}. Restore it."
            )
        for name, value in values.items():
            if name not in names:
                raise unknown("a field of a trial", name, names)
            if not isinstance(value, JSON_TYPES.get(name, int)):
                kind = JSON_TYPES.get(name, int).__name__
                raise UsageError(f"Expected {name} of a trial to be of type {kind}; found {value!r}. Restore it.")
        dataset = dataset_from_json(values["dataset"])
        trial = cls(
            **values
            | {
                "dataset": dataset,
                "algorithm": _made(algorithm_class, values["algorithm"]),
                "modifiers": tuple(_made(modifier_class, modifier) for modifier in values["modifiers"]),
                "training": changed(dataset.training, values["training"]),
                "probe": changed(Probe(), values["probe"]),
                "test_domains": tuple(values["test_domains"]),
            }
        )
        if unlike := differences(values, trial.to_json()):  # a text that was read as a number, a default filled in
            raise UsageError(f"Expected a trial as `pogm run` writes it; found that {unlike}. Restore it.")
        return trial

    def task(self, data: Path | None) -> Task:
        """What the engine trains."""
        return Task(
            algorithm=self.algorithm,
            dataset=self.dataset,
            load=lambda: _loaded(self.dataset, data, self.data_seed if self.dataset.uses_seed else 0),
            training=self.training,
            test_domains=self.test_domains,
            seed=self.seed,
            trial_seed=self.trial_seed,
            modifiers=self.modifiers,
            probe=self.probe,
            probe_capacity=self.probe.capacity(self.schedule.rounds(self.algorithm.minibatches)),
            precision=self.precision,
        )


@lru_cache(maxsize=2)  # trials that follow one another often share their data
def _loaded(dataset: DomainDataset, data: Path | None, seed: int) -> list[Domain]:
    return dataset.load(data, seed)


def dataset_from_json(values: Any) -> DomainDataset:
    """A dataset from what its ``to_json`` gave."""
    dataset: DomainDataset = _made(dataset_class, values)
    return dataset


def differences(found: Any, wanted: Any) -> str:
    """Where two values of JSON differ, field by field; empty if they do not. 1, 1.0 and true are three values."""
    return "; ".join(_unlike(found, wanted, ""))


def _unlike(found: Any, wanted: Any, path: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        fields = sorted(found.keys() | wanted.keys())
        if found.get("name") != wanted.get(
            "name"
        ):  # two algorithms: that their hyperparameters differ goes without saying
            fields = ["name"]
        for field in fields:
            place = f"{path}.{field}" if path else field
            yield from _unlike(found.get(field, ABSENT), wanted.get(field, ABSENT), place)
    else:
        there, here = ("absent" if value is ABSENT else canonical_json(value) for value in (found, wanted))
        if there != here:
            yield f"{path} is {there} there and {here} here"


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _named(part: Any) -> dict[str, Any]:
    return {"name": type(part).__name__, **to_json(part)}


def _made(find: Callable[[str], Any], values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        raise UsageError(f"Expected a dataset, an algorithm or a modifier with a name; found {values!r}. Restore it.")
    return from_json(find(values["name"])(), {name: value for name, value in values.items() if name != "name"})
