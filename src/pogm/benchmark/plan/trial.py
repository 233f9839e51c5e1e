"""A trial: the definition of one run as plain data that can be written, compared and hashed.

`Trial` is the only list of its fields. Validation, JSON, the comparison with saved trials and the defaults of a command
line follow from the fields and their metadata. To add a setting, add a line to `Trial` with `number` or `choice`; use
``added_later=True``, so that the ids of existing trials stay the same.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pogm._system.errors import UsageError, unknown_name_error
from pogm._system.files import canonical_json, digest
from pogm.algorithms import Algorithm, algorithm_class
from pogm.core import hyperparameters
from pogm.core.hyperparameters import replace_fields
from pogm.core.plugins import registered_name
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import LEAST_SAMPLES, Domain, DomainDataset, Training, check_loaded, seed_hash
from pogm.diagnostics import Probe
from pogm.engine.setup import PRECISIONS
from pogm.engine.task import Task
from pogm.engine.trainer import Schedule
from pogm.models import check_network
from pogm.models.weights import RANDOM
from pogm.modifiers import Modifier, modifier_class

ABSENT = object()
MOST_EVALUATIONS = 10**6
EVALUATIONS = (
    "all",  # all samples
    "selection",  # without the samples that the run trains on: those that rules of model selection and tables use
    "validation",  # only the *out* split of every domain: no accuracy of a held-out domain to report
)
REQUIRED = dataclasses.MISSING


def number(
    default: Any = REQUIRED, *, least: int, most: int, default_from: str | None = None, added_later: bool = False
) -> Any:
    """Return a field for a whole number.

    Args:
        default: The default; required if it is left out.
        least: The smallest value.
        most: The largest value.
        default_from: "dataset" if the dataset has the default, or "seed" if the field ``seed`` is the default; see
            `Trial.build`.
        added_later: Leave the field out of the JSON, and so out of the id, if it has its default.
    """
    limits = {"least": least, "most": most, "default_from": default_from, "added_later": added_later}
    return dataclasses.field(default=default, metadata=limits)


def choice(default: str, choices: tuple[str, ...], *, added_later: bool = False) -> Any:
    """Return a field for a text out of several."""
    return dataclasses.field(default=default, metadata={"choices": choices, "added_later": added_later})


@dataclass(frozen=True)
class Trial:
    """One algorithm, with its modifiers, on one dataset with some domains held out. It contains no paths."""

    dataset: DomainDataset  # dataset with its options
    algorithm: Algorithm  # algorithm with its hyperparameters
    test_domains: tuple[int, ...]  # indices of the held-out domains; none to train on all
    training: Training  # network, learning rate, batch size and other settings of every algorithm
    steps: int = number(least=1, most=10**8, default_from="dataset")  # minibatches of each domain
    evaluate_every: int = number(least=1, most=10**8, default_from="dataset")  # minibatches between evaluations
    modifiers: tuple[Modifier, ...] = ()  # modifiers with their hyperparameters
    seed: int = number(0, least=0, most=2**63 - 1)  # for initial weights and minibatches
    data_seed: int = number(0, least=0, most=2**63 - 1, default_from="seed")  # for datasets drawn at random
    trial_seed: int = number(0, least=0, most=2**63 - 1, default_from="seed")  # for training and validation splits
    hparams_seed: int = number(0, least=0, most=2**63 - 1)  # index of the configuration of a search; 0 is the default
    precision: str = choice("fp32", tuple(PRECISIONS))  # arithmetic of the network
    probe: Probe = Probe()  # noqa: RUF009  (frozen)  # measurements of rounds
    evaluation: str = choice("all", EVALUATIONS, added_later=True)  # samples to predict; see `EVALUATIONS`
    init_seed: int | None = number(None, least=0, most=2**63 - 1, added_later=True)  # for initial weights only
    samples: int | None = number(None, least=LEAST_SAMPLES, most=10**8, added_later=True)  # of each training domain

    def __post_init__(self) -> None:
        self._check_domains()
        for field in dataclasses.fields(self):
            _check_field(field, getattr(self, field.name))
        if self.steps > MOST_EVALUATIONS * self.evaluate_every:
            raise UsageError(
                f"Expected at most {MOST_EVALUATIONS} evaluations; found {self.steps} steps and an evaluation every "
                f"{self.evaluate_every}. Evaluate less often, or train for fewer steps."
            )
        check_network(self.training.network, self.training.weights)

    def _check_domains(self) -> None:
        domains, tested = self.dataset.domains, self.test_domains
        indices = all(_is_whole(index, 0, len(domains) - 1) for index in tested)
        if not indices or len(set(tested)) < len(tested):
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

    @classmethod
    def build(cls, parts: Mapping[str, Any], test_domains: tuple[int, ...], **options: Any) -> Self:
        """Return a trial; options that are None or absent have their default.

        Args:
            parts: The parts "dataset", "algorithm" and "training", then the modifiers by name.
            test_domains: Indices of the held-out domains.
            options: Other fields. An option that is no field raises a TypeError.
        """
        modifiers = dict(parts)
        main = {name: modifiers.pop(name) for name in ("dataset", "algorithm", "training")}
        given = {name: value for name, value in options.items() if value is not None}
        for field in dataclasses.fields(cls):
            source = field.metadata.get("default_from")
            if field.name not in given and source == "dataset":
                given[field.name] = getattr(main["dataset"], field.name)
            elif field.name not in given and source == "seed":
                given[field.name] = given.get("seed", 0)
        return cls(**main, test_domains=test_domains, modifiers=tuple(modifiers.values()), **given)

    @property
    def train_domains(self) -> tuple[int, ...]:
        """Indices of the domains that are not held out."""
        return tuple(i for i in range(len(self.dataset.domains)) if i not in self.test_domains)

    @property
    def weights_seed(self) -> int:
        """Seed of the initial weights: `init_seed`, or `seed` without one."""
        return self.seed if self.init_seed is None else self.init_seed

    @property
    def adapts(self) -> bool:
        """True if a prediction depends on the other samples of its batch (ARM, MTL, ITTA)."""
        sizes = [self.algorithm.prediction_batch_size, *(each.prediction_batch_size for each in self.modifiers)]
        return any(sizes) or type(self.algorithm).predict is not Algorithm.predict

    @property
    def label(self) -> str:
        """Name in a table, such as "POGM + Mixup"."""
        return " + ".join(registered_name(type(part)) for part in (self.algorithm, *self.modifiers))

    @property
    def id(self) -> str:
        """Hash of the trial, the same on every machine; name of its run directory."""
        values = self.to_json()
        values["dataset"].pop("title", None)  # a folder of images may be renamed
        return digest(canonical_json(values).encode())[:16]

    @property
    def schedule(self) -> Schedule:
        """Number of steps, and the steps of evaluations."""
        return Schedule(self.steps, self.evaluate_every)

    def soup_members(self, count: int) -> list[Self]:
        """Return this trial, and others that differ from it in their minibatches only, to average their weights.

        They have the same data, splits, initial weights and hyperparameters. Tables count them as configurations.
        """
        others = (
            dataclasses.replace(
                self, seed=seed_hash(self.seed, number), init_seed=self.weights_seed, hparams_seed=number
            )
            for number in range(1, count)
        )
        return [self, *others]

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return {
            field.name: _to_json(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if not (field.metadata.get("added_later") and getattr(self, field.name) == field.default)
        }

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the trial that ``to_json`` was called on.

        Raises:
            UsageError: If a field is missing, unknown, or has another type or value than ``to_json`` writes.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        required = {name for name, field in fields.items() if not field.metadata.get("added_later")}
        if not isinstance(values, dict) or required - values.keys():
            found = sorted(values) if isinstance(values, dict) else values
            raise UsageError(
                f"Expected a trial with the fields {', '.join(sorted(required))}; found {found!r}. Restore the file."
            )
        for name, value in values.items():
            if name not in fields:
                raise unknown_name_error("a field of a trial", name, fields)
            kind, _ = PARTS.get(name, (str if "choices" in fields[name].metadata else int, None))
            if not isinstance(value, kind):
                text = f"Expected {name} of a trial to be of type {kind.__name__}; found {value!r}. Restore the file."
                raise UsageError(text)
        dataset = dataset_from_json(values["dataset"])
        parts = {name: read(values[name], dataset) for name, (_, read) in PARTS.items()}
        trial = cls(**values | parts)
        if changes := differences(values, trial.to_json()):  # such as a text instead of a number, or a missing value
            raise UsageError(f"Expected a trial as `pogm run` writes it; found that {changes}. Restore the file.")
        return trial

    def task(self, data: Path | None) -> Task:
        """Return the task for the engine, which loads the dataset from the folder ``data``."""
        return Task(
            algorithm=self.algorithm,
            dataset=self.dataset,
            load=lambda: _load(self.dataset, data, self.data_seed if self.dataset.uses_seed else 0),
            training=self.training,
            test_domains=self.test_domains,
            seed=self.seed,
            init_seed=self.weights_seed,
            trial_seed=self.trial_seed,
            modifiers=self.modifiers,
            probe=self.probe,
            probe_capacity=self.probe.capacity(self.schedule.rounds(self.algorithm.minibatches)),
            precision=self.precision,
            evaluation=self.evaluation,
            samples=self.samples,
        )


def check_reports_test(evaluation: str) -> None:
    """Check that evaluations predict the held-out domains, whose accuracy tables report.

    Raises:
        UsageError: If they predict validation samples only.
    """
    if evaluation == "validation":
        raise UsageError(
            "Expected evaluations of the held-out domains, which the tables report; found --evaluation validation. "
            "Choose all or selection."
        )


@lru_cache(maxsize=2)  # consecutive trials often have the same data
def _load(dataset: DomainDataset, data: Path | None, seed: int) -> list[Domain]:
    domains = dataset.load(data, seed)
    check_loaded(dataset, domains)
    return domains


def check_methods(trials: Iterable[Trial]) -> None:
    """Check that every algorithm fits its modifiers, network and dataset, without data: build each network once.

    Raises:
        UsageError: A combination cannot be trained, for example because a modifier needs another network.
    """
    checked = set()
    for trial in trials:
        kind = trial.dataset, trial.label, trial.training.network
        if kind in checked:
            continue
        checked.add(kind)
        training = dataclasses.replace(trial.training, weights=RANDOM)  # faster to build
        task = dataclasses.replace(trial, training=training).task(None)
        try:
            task.loss.check_method([task.algorithm, *task.modifiers])
            for find in (Modifier.find_risks, Modifier.find_final, Modifier.find_evaluated, Modifier.check_test_time):
                find(task.modifiers)
            task.build_network()
        except UsageError as error:
            raise UsageError(f"In {trial.label} on {trial.dataset.title}: {error}") from error


# JSON.


def dataset_from_json(values: Any) -> DomainDataset:
    """Return the dataset that ``to_json`` was called on."""
    dataset: DomainDataset = _from_json(dataset_class, values)
    return dataset


PARTS: dict[str, tuple[type, Callable[[Any, DomainDataset], Any]]] = {  # JSON type and reader of fields with structure
    "dataset": (dict, lambda values, dataset: dataset),
    "algorithm": (dict, lambda values, dataset: _from_json(algorithm_class, values)),
    "modifiers": (list, lambda values, dataset: tuple(_from_json(modifier_class, value) for value in values)),
    "training": (dict, lambda values, dataset: replace_fields(dataset.training, values)),
    "probe": (dict, lambda values, dataset: replace_fields(Probe(), values)),
    "test_domains": (list, lambda values, dataset: tuple(values)),
}


def _to_json(value: Any) -> Any:
    """Return a field as a JSON value; parts that are found by their name have it as "name"."""
    if isinstance(value, DomainDataset):
        return value.to_json()
    if isinstance(value, Algorithm | Modifier):
        return {"name": registered_name(type(value)), **hyperparameters.to_json(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def _from_json(find_class: Callable[[str], Any], values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        raise UsageError(
            f"Expected a dataset, an algorithm or a modifier with a name; found {values!r}. Restore the file."
        )
    fields = {name: value for name, value in values.items() if name != "name"}
    return hyperparameters.from_json(find_class(values["name"])(), fields)


def differences(found: Any, wanted: Any) -> str:
    """Return a text with the differences between two JSON values, field by field; empty if they are equal.

    1, 1.0 and true are different values.
    """
    return "; ".join(_differences(found, wanted, ""))


def _differences(found: Any, wanted: Any, path: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = sorted(found.keys() | wanted.keys())
        if found.get("name") != wanted.get("name"):  # two algorithms: their hyperparameters differ anyway
            names = ["name"]
        for name in names:
            longer = f"{path}.{name}" if path else name
            yield from _differences(found.get(name, ABSENT), wanted.get(name, ABSENT), longer)
    else:
        first, second = ("absent" if value is ABSENT else canonical_json(value) for value in (found, wanted))
        if first != second:
            yield f"{path} is {first} there and {second} here"


# Validation.


def _check_field(field: dataclasses.Field[Any], value: Any) -> None:
    """Raise an error if a value violates the metadata of its field."""
    limits = field.metadata
    if value is None and field.default is None:
        return
    if "least" in limits and not _is_whole(value, limits["least"], limits["most"]):
        raise UsageError(
            f"Expected {field.name} to be a whole number from {limits['least']} to {limits['most']}; found {value!r}. "
            "Choose one in that range."
        )
    if "choices" in limits and value not in limits["choices"]:
        raise unknown_name_error(f"a value of {field.name}", value, limits["choices"])


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
