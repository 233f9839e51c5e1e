"""A sweep: algorithms × datasets × held-out domains × configurations × trials, with DomainBed's random search."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pogm._system.collector import pause_collector
from pogm._system.errors import UsageError, unknown_name_error
from pogm._system.saved import check_form
from pogm.algorithms import algorithm_class
from pogm.benchmark.plan.combination import Combination, modifier_names, split_method
from pogm.benchmark.plan.settings import apply, check_settings, settings_for
from pogm.benchmark.plan.trial import Trial, check_reports_test, dataset_from_json, differences
from pogm.core.hyperparameters import Space, apply_large_defaults, fields, replace_fields
from pogm.data.datasets.base import DomainDataset, seed_hash
from pogm.diagnostics import Probe
from pogm.modifiers import modifier_class

MODES = ("single", "full")
MOST_RUNS = 10**6
SHARED_SEED = 0  # seed of initial weights that all runs share
FORM = {
    "algorithms": [str],
    "modifiers": [str],
    "settings": [str],
    "mode": str,
    "precision": str,
    "evaluation?": str,
    "shared_init?": bool,
}
ADDED_LATER = ("shared_init", "evaluation")  # fields that are left out of the JSON if they have their defaults


class _Search:
    """Configurations of one number and repetition. Trials that hold out other domains share them.

    Args:
        hparams_seed: Number of the configuration.
        trial_seed: Number of the repetition.
        training_only: Search the training settings only; algorithms and modifiers have their defaults.
    """

    def __init__(self, hparams_seed: int, trial_seed: int, training_only: bool = False):
        self.hparams_seed, self.trial_seed, self.training_only = hparams_seed, trial_seed, training_only
        self._found: dict[object, Any] = {}

    def configuration(self, kind: type, large: bool) -> Any:
        """Return the configuration of an algorithm or a modifier."""
        return _default(kind, large) if self.training_only else self._find((kind, large), kind, large)

    def training(self, data: DomainDataset) -> Any:
        """Return the configuration of the training settings of a dataset."""
        return self._find(data, lambda: data.training)

    def _find(self, key: object, make: Callable[[], Any], large: bool = False) -> Any:
        if key not in self._found:
            self._found[key] = configuration(make(), self.hparams_seed, self.trial_seed, large)
        return self._found[key]


@cache
def _default(kind: type, large: bool) -> Any:
    return configuration(kind(), 0, 0, large)


@dataclass(frozen=True)
class Sweep:
    """A comparison of algorithms. DomainBed's protocol: 20 configurations, 3 trials, every domain held out once."""

    algorithms: tuple[str, ...]  # names of algorithms, alone or with modifiers ("ERM + SWAD")
    datasets: tuple[DomainDataset, ...]
    configurations: int = 20  # configurations of hyperparameters; the first one is the defaults
    trials: int = 3  # repetitions with other seeds, splits and configurations
    mode: str = "single"  # "full" also holds out every pair of domains, for leave-one-domain-out selection
    modifiers: tuple[str, ...] = ()  # names of modifiers of all algorithms
    settings: tuple[str, ...] = ()  # "lr=0.001" for every trial, "POGM.kappa=0.1" for one algorithm; not searched
    steps: int | None = None  # minibatches of each domain; None for the default of the dataset
    evaluate_every: int | None = None  # minibatches between evaluations; None for the default of the dataset
    precision: str = "fp32"  # arithmetic of the network
    probe_every: int = 0  # rounds between measurements; 0 for none
    evaluation: str = "all"  # samples that evaluations predict, as in a trial
    shared_init: bool = False  # share initial weights, and generated data of a trial, so that runs can be combined

    def __post_init__(self) -> None:
        for name in ("configurations", "trials"):
            if getattr(self, name) < 1:
                raise UsageError(f"Expected --{name} of at least 1; found {getattr(self, name)}. Leave it out.")
        methods = [" + ".join((algorithm, *own)) for algorithm, own in map(split_method, self.algorithms)]
        object.__setattr__(self, "algorithms", tuple(methods))
        object.__setattr__(self, "modifiers", modifier_names(self.modifiers))
        check_reports_test(self.evaluation)
        Probe.each(self.probe_every)  # raises an error for an invalid number of rounds
        if self.mode not in MODES:
            raise unknown_name_error("a mode", self.mode, MODES)
        runs = len(self.algorithms) * sum(map(self.count, self.datasets))
        if runs > MOST_RUNS:
            raise UsageError(
                f"Expected at most {MOST_RUNS} runs; found {runs}. Choose fewer --configurations or --trials."
            )
        titles = tuple(dataset.title for dataset in self.datasets)
        for name, values in (("algorithms", self.algorithms), ("datasets", titles), ("modifiers", self.modifiers)):
            if len(set(values)) < len(values):
                raise UsageError(f"Expected each of --{name} once; found {', '.join(values)}. Leave one out.")

    def plan(self) -> list[Trial]:
        """Return all trials, ordered by repetition and configuration, so that early results cover all cells."""
        return self._build(self._held_out)

    def sample(self) -> list[tuple[Trial, int]]:
        """Return trials with the costs of those of the plan, each with the number of trials that it stands for.

        Costs depend on the algorithm, the training settings and the number of held-out domains. The trials have other
        held-out domains than those that they stand for, and default hyperparameters of algorithms and modifiers. This
        takes a fraction of the time of the plan.
        """
        sizes: dict[DomainDataset, Counter[int]] = {
            data: Counter(map(len, self._held_out(data))) for data in self.datasets
        }
        trials = self._build(lambda data: [list(range(size)) for size in sizes[data]], training_only=True)
        return [(trial, sizes[trial.dataset][len(trial.test_domains)]) for trial in trials]

    def _build(
        self, held_out_domains: Callable[[DomainDataset], list[list[int]]], training_only: bool = False
    ) -> list[Trial]:
        pairs = list(itertools.product(self.datasets, self.algorithms))
        kinds = {(data, name): self.combination(name, data) for data, name in pairs}
        check_settings(self.settings, list(kinds.values()))
        settings = {kind: settings_for(kind, self.settings) for kind in kinds.values()}
        probe = Probe.each(self.probe_every)
        trials = []
        with pause_collector():
            for trial_seed, hparams_seed in itertools.product(range(self.trials), range(self.configurations)):
                search = _Search(hparams_seed, trial_seed, training_only)
                for dataset in self.datasets:
                    methods = [kinds[dataset, name] for name in self.algorithms]
                    parts = {kind: self._parts(kind, search, settings[kind]) for kind in methods}
                    for held_out, kind in itertools.product(held_out_domains(dataset), methods):
                        trials.append(self._trial(parts[kind], kind.algorithm, held_out, search, probe))
        return trials

    def combination(self, method: str, dataset: DomainDataset) -> Combination:
        """Return an algorithm, alone or with modifiers of its own, with the modifiers of all algorithms.

        Raises:
            UsageError: If a modifier is given twice.
        """
        found = Combination.parse(method, dataset, self.modifiers)
        if len(set(found.modifiers)) < len(found.modifiers):
            raise UsageError(f"Expected each modifier once; found {found.label}. Leave out the repeated one.")
        return found

    def count(self, dataset: DomainDataset) -> int:
        """Return the number of trials of one algorithm on a dataset, without building them."""
        return len(self._held_out(dataset)) * self.configurations * self.trials

    def coordinates(self, dataset: DomainDataset) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield test domains, configuration and trial number of every trial of an algorithm on a dataset."""
        for trial_seed in range(self.trials):
            for hparams_seed in range(self.configurations):
                for held_out in self._held_out(dataset):
                    yield tuple(held_out), hparams_seed, trial_seed

    def trial_at(
        self, dataset: DomainDataset, algorithm: str, held_out: Sequence[int], hparams_seed: int, trial_seed: int
    ) -> Trial:
        """Build one trial of the plan."""
        kind, search = self.combination(algorithm, dataset), _Search(hparams_seed, trial_seed)
        parts = self._parts(kind, search, settings_for(kind, self.settings))
        return self._trial(parts, kind.algorithm, list(held_out), search, Probe.each(self.probe_every))

    def _held_out(self, dataset: DomainDataset) -> list[list[int]]:
        count = len(dataset.domains)
        pairs = itertools.combinations(range(count), 2) if self.mode == "full" else ()
        return [*([domain] for domain in range(count)), *map(list, pairs)]

    def _parts(self, kind: Combination, search: _Search, settings: Sequence[str]) -> dict[str, Any]:
        """Return the parts of trials, which do not depend on the held-out domains."""
        data = kind.dataset
        parts: dict[str, Any] = {
            "algorithm": search.configuration(algorithm_class(kind.algorithm), data.large),
            "training": search.training(data),
            "dataset": data,
        }
        for name in kind.modifiers:
            parts[name] = search.configuration(modifier_class(name), data.large)
        apply(settings, parts, f"a hyperparameter of {kind.algorithm} on {data.title}")
        return parts

    def _trial(
        self, parts: dict[str, Any], algorithm: str, held_out: list[int], search: _Search, probe: Probe
    ) -> Trial:
        data: DomainDataset = parts["dataset"]
        seed = seed_hash(data.seed_name, algorithm, held_out, search.hparams_seed, search.trial_seed)
        return Trial.build(
            parts,
            tuple(held_out),
            seed=seed,
            init_seed=SHARED_SEED if self.shared_init else None,
            data_seed=search.trial_seed if self.shared_init else seed,
            trial_seed=search.trial_seed,
            hparams_seed=search.hparams_seed,
            probe=probe,
            **{name: getattr(self, name) for name in SHARED},
        )

    def to_json(self, titles: bool = True) -> dict[str, Any]:
        """Return the sweep as JSON values; without the titles of datasets if a folder of images may be renamed."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        facts = [dataset.to_json() for dataset in self.datasets]
        values["datasets"] = [{n: v for n, v in fact.items() if titles or n != "title"} for fact in facts]
        for field in dataclasses.fields(self):
            if field.name in ADDED_LATER and values[field.name] == field.default:
                del values[field.name]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Any) -> "Sweep":
        """Return the sweep that ``to_json`` was called on.

        Raises:
            UsageError: If a field is missing, unknown, or has another type or value than ``to_json`` writes.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or {*ADDED_LATER, *values} != names:
            raise UsageError(f"Expected the fields {', '.join(sorted(names))}; found others. Restore the file.")
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        datasets = tuple(dataset_from_json(value) for value in lists.get("datasets", ()))
        try:
            check_form(values, FORM, "the sweep")
            sweep = cls(**values | lists | {"datasets": datasets})
        except UsageError:
            raise
        except (TypeError, ValueError) as error:  # such as a text instead of a number
            raise UsageError(
                f"Expected a sweep as `pogm sweep` writes it; found: {error}. Restore the file."
            ) from error
        if changes := differences(values, sweep.to_json()):
            raise UsageError(f"Expected a sweep as `pogm sweep` writes it; found that {changes}. Restore the file.")
        return sweep


# Fields of a trial that a sweep has too, with the same value for all trials.
SHARED = [
    field.name
    for field in dataclasses.fields(Trial)
    if field.metadata and field.name in {own.name for own in dataclasses.fields(Sweep)}
]


# Random search.


def configuration(owner: Any, hparams_seed: int, trial_seed: int, large: bool = False) -> Any:
    """Return a configuration of hyperparameters: the defaults for number 0, otherwise random draws as in DomainBed.

    Args:
        owner: An algorithm, a modifier or training settings, with search spaces on their fields.
        hparams_seed: Number of the configuration.
        trial_seed: Number of the repetition.
        large: Use the defaults and spaces for large images.
    """
    owner = apply_large_defaults(owner, large)
    if hparams_seed == 0:
        return owner
    values = {}
    for field in fields(owner):
        space = field.metadata["large"].space if large and field.metadata.get("large") else field.metadata.get("space")
        if space is not None:
            values[field.name] = draw(space, field.metadata["draw_as"] or field.name, hparams_seed, trial_seed)
    return replace_fields(owner, values)


def draw(space: Space, name: str, hparams_seed: int, trial_seed: int) -> Any:
    """Draw a value. Its seed includes the name, so that a new hyperparameter does not change the others."""
    seed = seed_hash(seed_hash(hparams_seed, trial_seed), name)
    return space.draw(np.random.RandomState(seed))
