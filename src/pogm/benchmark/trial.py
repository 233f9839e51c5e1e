"""A trial: what one run computes, as plain data that can be written, compared and hashed."""

import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pogm.algorithms import Algorithm, algorithm_class
from pogm.core.errors import UsageError, unknown
from pogm.core.files import canonical_json, digest
from pogm.core.hyper import changed
from pogm.datasets import DomainDataset, dataset_class
from pogm.datasets.base import Domain, Training
from pogm.engine.session import PRECISIONS
from pogm.engine.task import Task
from pogm.engine.train import Schedule
from pogm.modifiers import Modifier, modifier_class
from pogm.networks import all_networks
from pogm.probes.angle import AngleProbe


@dataclass(frozen=True)
class Trial:
    """One algorithm, with its modifiers, on one dataset with some domains held out. Paths are no part of it."""

    dataset: str
    algorithm: Algorithm
    test_domains: tuple[int, ...]
    training: Training
    steps: int
    evaluate_every: int
    modifiers: tuple[Modifier, ...] = ()
    seed: int = 0  # of the data's construction, the weights and the minibatches
    trial_seed: int = 0  # of the split into training and validation images
    hparams_seed: int = 0  # which draw of the search this is; 0 for the defaults
    precision: str = "fp32"
    probe_every: int = 0  # rounds between measurements of the domains' angles; 0 for none

    def __post_init__(self) -> None:
        domains = dataset_class(self.dataset).domains
        tested = self.test_domains
        if not tested or len(set(tested)) < len(tested) or not all(0 <= t < len(domains) for t in tested):
            raise UsageError(
                f"Expected test domains of {self.dataset}, each once: "
                f"{', '.join(f'{i} ({name})' for i, name in enumerate(domains))}; found {list(tested)}."
            )
        left, least = len(domains) - len(tested), self.algorithm.min_domains
        if left < least:
            raise UsageError(
                f"Expected at least {least} training domain{'s' * (least > 1)} for {type(self.algorithm).__name__}; "
                f"found {left} left of {self.dataset}'s {len(domains)}. Hold out fewer of them."
            )
        for name, least in {
            "steps": 1,
            "evaluate_every": 1,
            "seed": 0,
            "trial_seed": 0,
            "probe_every": 0,
        }.items():
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise UsageError(
                    f"Expected {name} to be a whole number of at least {least}; found {getattr(self, name)!r}."
                )
        if self.precision not in PRECISIONS:
            raise unknown("a precision", self.precision, PRECISIONS)
        if self.training.network not in all_networks():
            raise unknown("a network", self.training.network, all_networks())

    @property
    def label(self) -> str:
        """Its name in a table, such as "POGM + Mixup"."""
        return " + ".join(type(part).__name__ for part in (self.algorithm, *self.modifiers))

    @property
    def id(self) -> str:
        """The hash of what is computed: the same on every machine, wherever the data lies."""
        return digest(canonical_json(self.to_json()).encode())[:16]

    @property
    def schedule(self) -> Schedule:
        """How long it trains and when it is evaluated."""
        return Schedule(self.steps, self.evaluate_every)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "algorithm": _named(self.algorithm),
            "modifiers": [_named(modifier) for modifier in self.modifiers],
            "training": dataclasses.asdict(self.training),
            "test_domains": list(self.test_domains),
        }

    @classmethod
    def from_json(cls, values: Any) -> "Trial":
        """From what ``to_json`` gave; anything missing or extra is refused."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            found = sorted(values) if isinstance(values, dict) else type(values).__name__
            raise UsageError(f"Expected a trial with the fields {', '.join(sorted(names))}; found {found}.")
        try:
            return cls(
                **values
                | {
                    "algorithm": _made(algorithm_class, values["algorithm"]),
                    "modifiers": tuple(_made(modifier_class, modifier) for modifier in values["modifiers"]),
                    "training": changed(Training(), values["training"]),
                    "test_domains": tuple(values["test_domains"]),
                }
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"Expected a trial as `pogm run` writes it; found a field that does not fit: {error}."
            ) from error

    def task(self, data: Path | None) -> Task:
        """What the engine trains."""
        dataset = dataset_class(self.dataset)()
        return Task(
            algorithm=self.algorithm,
            dataset=dataset,
            load=lambda: _loaded(type(dataset), data, self.seed),
            training=self.training,
            test_domains=self.test_domains,
            seed=self.seed,
            trial_seed=self.trial_seed,
            modifiers=self.modifiers,
            probe=AngleProbe(self.probe_every) if self.probe_every else None,
            precision=self.precision,
        )


@cache
def _loaded(dataset: type[DomainDataset], data: Path | None, seed: int) -> list[Domain]:
    return dataset().load(data, seed)


def _named(part: Any) -> dict[str, Any]:
    return {"name": type(part).__name__, **dataclasses.asdict(part)}


def _made(find: Any, values: dict[str, Any]) -> Any:
    rest = dict(values)
    return changed(find(rest.pop("name"))(), rest)
