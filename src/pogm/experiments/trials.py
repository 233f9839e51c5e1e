"""Trials of the experiments: searches, whose trials are built on first use, and single trials with default settings."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

from pogm.algorithms import algorithm_class
from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.settings import apply, settings_for
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.core.hyperparameters import apply_large_defaults, fields
from pogm.data.datasets.base import DomainDataset, seed_hash
from pogm.experiments.base import Row, Scale
from pogm.modifiers import Modifier, modifier_class

Method = type[Algorithm] | type[Modifier]
SHORT = {"Fishr": {"penalty": 100.0}}  # hyperparameters of the embedded scale, as in the demo


class SweepTrials(Sequence[Trial]):
    """Trials of sweeps of one algorithm, built on first use. Counting them does not build them.

    A full search has tens of thousands of trials, and building them takes minutes.
    """

    def __init__(self, sweeps: Sequence[Sweep]):
        self.sweeps = sweeps

    @cached_property
    def _trials(self) -> list[Trial]:
        return [trial for sweep in self.sweeps for trial in sweep.plan()]

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...
    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        return self._trials[index]

    def __len__(self) -> int:
        return sum(sweep.count(data) for sweep in self.sweeps for data in sweep.datasets)

    def first(self) -> Trial:
        """Build the first trial only."""
        return replace(self.sweeps[0], configurations=1, trials=1).plan()[0]

    def keys(self) -> Iterator[tuple[Hashable, str]]:
        """Yield a key of every trial, and its dataset. Trials with the same key are the same."""
        for sweep in self.sweeps:
            identity = _identity(sweep)
            for data in sweep.datasets:
                for coordinates in sweep.coordinates(data):
                    yield (identity, data.title, coordinates), data.title

    def finished(self, saved: Mapping[str, Mapping[str, Any]]) -> set[Hashable]:
        """Return the keys of the trials that are among finished runs. A trial that cannot be among them is not built.

        Args:
            saved: Content of trial.json by trial id.
        """
        found: set[Hashable] = set()
        for sweep in self.sweeps:
            (algorithm,), identity = sweep.algorithms, _identity(sweep)
            label = " + ".join((algorithm, *sweep.modifiers))
            planned = {data.title: (data, set(sweep.coordinates(data))) for data in sweep.datasets}
            for number, content in saved.items():
                values = content["trial"]
                data, wanted = planned.get(values["dataset"]["name"], (None, set()))
                where = (tuple(values["test_domains"]), values["hparams_seed"], values["trial_seed"])
                if data is None or content["label"] != label or where not in wanted:
                    continue
                if sweep.trial_at(data, algorithm, *where).id == number:
                    found.add((identity, data.title, where))
        return found


def _identity(sweep: Sweep) -> Sweep:
    """Return everything about a sweep that decides its trials, except dataset, configuration and trial number."""
    return replace(sweep, datasets=(), configurations=1, trials=1)


def first_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first trial, and build no other."""
    return trials.first() if isinstance(trials, SweepTrials) else trials[0]


def trial_keys(trials: Sequence[Trial]) -> dict[Hashable, str]:
    """Return the dataset of every trial by a key that identical trials share."""
    if isinstance(trials, SweepTrials):
        return dict(trials.keys())
    return {trial.id: trial.dataset.title for trial in trials}


def finished_keys(trials: Sequence[Trial], saved: Mapping[str, Mapping[str, Any]]) -> set[Hashable]:
    """Return the keys of the trials that are among finished runs, by trial id."""
    if isinstance(trials, SweepTrials):
        return trials.finished(saved)
    return {trial.id for trial in trials if trial.id in saved}


def trial_datasets(trials: Sequence[Trial]) -> Iterable[DomainDataset]:
    """Return the datasets of trials, each once."""
    if isinstance(trials, SweepTrials):
        return dict.fromkeys(data for sweep in trials.sweeps for data in sweep.datasets)
    return dict.fromkeys(trial.dataset for trial in trials)


def plan_search(
    scale: Scale, row: Row, *, configurations: int | None = None, datasets: tuple[str, ...] | None = None
) -> Sequence[Trial]:
    """Return DomainBed's search for one row of a table: every domain held out, every configuration, every trial.

    It is empty for a row that the scale does not select, because settings of the command line need not apply to it.
    """
    if not scale.selects(row):
        return []
    found = (scale.dataset(name) for name in datasets or scale.datasets)
    return SweepTrials([search_of(scale, row, data, configurations or scale.configurations) for data in found])


def search_of(scale: Scale, row: Row, data: DomainDataset, configurations: int) -> Sweep:
    """Return the search of one row on one dataset."""
    methods: dict[str, Method] = {"algorithm": algorithm_class(row.algorithm)}
    methods |= _modifiers(row)
    schedules = [
        f"{owner}.{n}={v}" for owner, method in methods.items() for n, v in shorten_schedules(method, scale).items()
    ]
    network = (f"training.{n}={v}" for n, v in _network(scale, data).items())
    return Sweep(
        algorithms=(row.algorithm,),
        datasets=(data,),
        configurations=configurations,
        trials=scale.trials,
        modifiers=row.modifiers,
        settings=(*schedules, *network, *_settings(scale, row, data)),
        steps=scale.steps,
        evaluate_every=scale.evaluate_every,
        precision=scale.precision,
        evaluation=scale.evaluation,
    )


def default_trial(scale: Scale, dataset: str, row: Row, held_out: int, trial_seed: int, **more: Any) -> Trial:
    """Return one trial that is not part of a search. All rows have the same data, first weights and minibatches.

    Args:
        scale: The scale.
        dataset: Name of the dataset.
        row: Algorithm, modifiers and fixed settings.
        held_out: Index of the test domain.
        trial_seed: Number of the repetition.
        more: Other fields of the trial, such as ``probe``.
    """
    data = scale.dataset(dataset)
    method = algorithm_class(row.algorithm)
    parts: dict[str, Any] = {
        "algorithm": apply_large_defaults(method(**shorten_schedules(method, scale)), data.large),
        "training": replace(data.training, **_network(scale, data)),
        "dataset": data,
        **{
            name: apply_large_defaults(kind(**shorten_schedules(kind, scale)), data.large)
            for name, kind in _modifiers(row).items()
        },
    }
    apply(_settings(scale, row, data), parts, f"a hyperparameter of {row.name} on {data.title}")
    values: dict[str, Any] = {
        "test_domains": (held_out,),
        "steps": scale.steps,
        "evaluate_every": scale.evaluate_every,
        "seed": paired_seed(data, held_out, trial_seed),
        "trial_seed": trial_seed,
        "precision": scale.precision,
        "evaluation": scale.evaluation,
    }
    return Trial.build(parts, **values | more)


def paired_seed(data: DomainDataset, held_out: int, trial_seed: int) -> int:
    """Return the seed of a trial that all methods share: of its data, first weights and minibatches."""
    return seed_hash(data.seed_name, held_out, trial_seed)


def shorten_schedules(method: Method, scale: Scale) -> dict[str, Any]:
    """Return hyperparameters that start the schedules of a method within the short runs of a scale; else nothing."""
    if scale.latest_start is None:
        return {}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(method)}
    starts = [name for name in defaults if name.endswith("_iters") and not name.startswith("end_")]
    late = [name for name in starts if defaults[name] > scale.latest_start]
    changed = dict.fromkeys(late, scale.latest_start)
    for name in late:
        end = name.replace("start_", "end_", 1)
        if end != name and end in defaults:  # the phase keeps its length
            changed[end] = scale.latest_start + defaults[end] - defaults[name]
    fixed = SHORT.get(method.__name__, {}) if scale.name == "embedded" else {}
    return changed | fixed


def _modifiers(row: Row) -> dict[str, type[Modifier]]:
    return {name: modifier_class(name) for name in row.modifiers}


def _settings(scale: Scale, row: Row, data: DomainDataset) -> list[str]:
    """Return settings of the command line that apply to a row, then those that the row fixes."""
    return [*settings_for(row.combination(data), scale.settings), *row.settings]


def _network(scale: Scale, data: DomainDataset) -> dict[str, Any]:
    network = scale.network or (scale.large_network if data.large else None)
    chosen = {"network": network, "weights": scale.weights if data.large else None}
    return {name: value for name, value in chosen.items() if value is not None}
