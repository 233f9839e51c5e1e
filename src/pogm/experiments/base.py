"""Scales, rows and trials of the experiments.

An experiment is a file of this folder with two functions. ``plan(scale)`` returns its trials by row; a drawing has
none. ``exhibits(runs, scale)`` returns its tables and figures from the runs of its plan, which come in the order of the
rows and with the names of the rows as labels. The first line of its docstring is its title. The id of a trial is a hash
of what it computes, so experiments that plan the same trial share its run.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

from pogm._system.errors import unknown_name_error
from pogm.algorithms import algorithm_class
from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.parsing import Combination, apply, settings_for
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.comparison import Comparison
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.core.hyperparameters import apply_large_defaults, fields
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import DomainDataset
from pogm.data.datasets.splits import seed_hash
from pogm.modifiers import Modifier, modifier_class
from pogm.report.figure import Figure

Exhibit = Table | Comparison | Figure
Method = type[Algorithm] | type[Modifier]
SHORT = {"Fishr": {"penalty": 100.0}}  # hyperparameters for short runs, as in the demo


@dataclass(frozen=True)
class Row:
    """A row of a table, or a method of a figure: an algorithm with its modifiers and fixed settings.

    Rows can share an algorithm and differ in their settings, so results are labelled by the name of the row.
    """

    algorithm: str  # name of the algorithm
    modifiers: tuple[str, ...] = ()  # names of modifiers
    settings: tuple[str, ...] = ()  # such as "kappa=0"; neither the search nor --set changes them
    name: str = ""  # label in tables; default: algorithm, modifiers and settings

    def __post_init__(self) -> None:
        if not self.name:
            fixed = (setting.replace("=", " = ", 1) for setting in self.settings)
            object.__setattr__(self, "name", ", ".join([" + ".join((self.algorithm, *self.modifiers)), *fixed]))

    def fixes(self, name: str) -> bool:
        """Return True if the row has a setting of this name."""
        return any(setting.partition("=")[0] == name for setting in self.settings)

    def combination(self, data: DomainDataset) -> Combination:
        """Return the combination that settings are checked against: algorithm, modifiers and dataset."""
        return Combination(self.algorithm, self.modifiers, data)


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
            for data in sweep.datasets:
                for coordinates in sweep.coordinates(data):
                    yield (_identity(sweep), data.title, coordinates), data.title

    def finished(self, saved: Mapping[str, Mapping[str, Any]]) -> set[Hashable]:
        """Return the keys of the trials that are among finished runs. Builds only trials that could be.

        Args:
            saved: Content of trial.json by trial id.
        """
        found: set[Hashable] = set()
        for sweep in self.sweeps:
            (algorithm,) = sweep.algorithms
            label = " + ".join((algorithm, *sweep.modifiers))
            planned = {data.title: (data, set(sweep.coordinates(data))) for data in sweep.datasets}
            for number, content in saved.items():
                values = content["trial"]
                data, wanted = planned.get(values["dataset"]["name"], (None, set()))
                where = (tuple(values["test_domains"]), values["hparams_seed"], values["trial_seed"])
                if data is None or content["label"] != label or where not in wanted:
                    continue
                if sweep.trial_at(data, algorithm, *where).id == number:
                    found.add((_identity(sweep), data.title, where))
        return found


def _identity(sweep: Sweep) -> Hashable:
    """Return everything about a sweep that decides its trials, except dataset, configuration and trial number."""
    return (
        sweep.algorithms,
        sweep.modifiers,
        sweep.settings,
        sweep.steps,
        sweep.evaluate_every,
        sweep.precision,
        sweep.probe_every,
    )


Plan = Mapping[Row, Sequence[Trial]]


def first_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first trial, and build no other."""
    return trials.first() if isinstance(trials, SweepTrials) else trials[0]


def keys_of(trials: Sequence[Trial]) -> dict[Hashable, str]:
    """Return the dataset of every trial by a key that identical trials share."""
    if isinstance(trials, SweepTrials):
        return dict(trials.keys())
    return {trial.id: trial.dataset.title for trial in trials}


def finished_keys(trials: Sequence[Trial], saved: Mapping[str, Mapping[str, Any]]) -> set[Hashable]:
    """Return the keys of the trials that are among finished runs, by trial id."""
    if isinstance(trials, SweepTrials):
        return trials.finished(saved)
    return {trial.id for trial in trials if trial.id in saved}


def datasets_of(trials: Sequence[Trial]) -> Iterable[DomainDataset]:
    """Return the datasets of trials, each once."""
    if isinstance(trials, SweepTrials):
        return dict.fromkeys(data for sweep in trials.sweeps for data in sweep.datasets)
    return dict.fromkeys(trial.dataset for trial in trials)


@dataclass(frozen=True)
class Scale:
    """Size of an experiment: its datasets, number of runs and length. None stands for the default of the dataset."""

    name: str  # as in --scale
    summary: str  # one line for pogm list experiments
    datasets: tuple[str, ...]  # names of datasets
    configurations: int  # configurations of a search; the first is the defaults
    ablation: int  # configurations of the search of POGM for Tables 3 to 5
    trials: int  # repetitions of a search, with other seeds and splits
    seeds: int = 3  # repetitions of the runs of the figures
    network: str | None = None  # network for all datasets
    large_network: str | None = None  # network for photographs, if ``network`` is None
    weights: str | None = None  # pretrained weights of networks for photographs
    steps: int | None = None  # minibatches of each training domain
    evaluate_every: int | None = None  # minibatches between evaluations
    precision: str = "fp32"  # fp32, tf32, bf16 or fp64
    soon: int | None = None  # minibatches after which schedules start that would start after the end of the run
    settings: tuple[str, ...] = ()  # from --set: "lr=0.001" for all rows, "POGM.kappa=0.1" for one algorithm
    algorithms: tuple[str, ...] = ()  # names of the rows to run; empty: all
    given: tuple[str, ...] = ()  # words of the command line that changed the scale

    def selects(self, row: "Row") -> bool:
        """Return True if --algorithms names the row, or if it is not given."""
        return not self.algorithms or normalize_row_name(row.name) in set(map(normalize_row_name, self.algorithms))

    def was_given(self, option: str) -> bool:
        """Return True if the command line changed the scale by this option, such as "--steps"."""
        return option in self.given


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "embedded",
            "digits of 8×8 that come with the package and a small network: minutes on two cores",
            datasets=("RotatedDigits", "ColoredDigits"),
            configurations=1,
            ablation=15,  # with fewer configurations, one of the trials draws no κ = 0.05
            trials=2,
            network="small_cnn",
            steps=101,
            evaluate_every=20,
            soon=30,
        ),
        Scale(
            "mnist",
            "the two MNIST datasets, three configurations: about a day on one GPU",
            datasets=("ColoredMNIST", "RotatedMNIST"),
            configurations=3,
            ablation=20,
            trials=3,
        ),
        Scale(
            "pacs",
            "PACS with a ResNet-18, or the ResNet-50 of --weights, default hyperparameters: about a day on one GPU",
            datasets=("PACS",),
            configurations=1,
            ablation=20,
            trials=3,
            large_network="resnet18",
            precision="tf32",
        ),
        Scale(
            "full",
            "the paper's seven datasets, 20 configurations, 3 trials: a cluster",
            datasets=(
                "ColoredMNIST",
                "RotatedMNIST",
                "VLCS",
                "PACS",
                "OfficeHome",
                "TerraIncognita",
                "DomainNet",
            ),
            configurations=20,
            ablation=20,
            trials=3,
        ),
    )
}


def scale_named(name: str) -> Scale:
    """Return a scale by its name, or raise an error that suggests the nearest one."""
    if name not in SCALES:
        raise unknown_name_error("a scale", name, SCALES)
    return SCALES[name]


@dataclass(frozen=True)
class Experiment:
    """A table or a figure, from one file of this folder."""

    name: str  # name of the file
    title: str  # first line of its docstring
    text: str  # rest of its docstring
    plan: Callable[[Scale], Plan]  # trials by row
    exhibits: Callable[[Sequence[Run], Scale], list[Exhibit]]  # tables and figures from the runs of the plan

    def rows(self, scale: Scale) -> Plan:
        """Return the planned trials by row, for the rows that the scale selects."""
        return {row: found for row, found in self.plan(scale).items() if scale.selects(row)}

    def trials(self, scale: Scale) -> list[Trial]:
        """Return all planned trials. A trial that two rows share is there twice."""
        return [trial for found in self.rows(scale).values() for trial in found]


def normalize_row_name(name: str) -> str:
    """Return the name of a row without case, spaces and punctuation: ANDMask and AND-mask are the same row."""
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter in "+.")


def plan_search(
    scale: Scale, row: Row, *, configurations: int | None = None, datasets: tuple[str, ...] | None = None
) -> Sequence[Trial]:
    """Return DomainBed's search for one row of a table: every domain held out, every configuration, every trial.

    It is empty for a row that the scale does not select, because settings of the command line need not apply to it.
    """
    if not scale.selects(row):
        return []
    methods: dict[str, Method] = {"algorithm": algorithm_class(row.algorithm)}
    methods |= _modifiers(row)
    schedules = [
        f"{owner}.{n}={v}" for owner, method in methods.items() for n, v in shorten_schedules(method, scale).items()
    ]
    sweeps = []
    for data in (dataset_class(name)() for name in datasets or scale.datasets):
        network = (f"training.{n}={v}" for n, v in _network(scale, data).items())
        sweep = Sweep(
            algorithms=(row.algorithm,),
            datasets=(data,),
            configurations=configurations or scale.configurations,
            trials=scale.trials,
            modifiers=row.modifiers,
            settings=(*schedules, *network, *_settings(scale, row, data)),
            steps=scale.steps,
            evaluate_every=scale.evaluate_every,
            precision=scale.precision,
        )
        sweeps.append(sweep)
    return SweepTrials(sweeps)


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
    data = dataset_class(dataset)()
    method = algorithm_class(row.algorithm)
    number = seed_hash(data.seed_name, held_out, trial_seed)
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
        "dataset": parts.pop("dataset"),
        "algorithm": parts.pop("algorithm"),
        "training": parts.pop("training"),
        "modifiers": tuple(parts.values()),
        "test_domains": (held_out,),
        "steps": data.steps if scale.steps is None else scale.steps,
        "evaluate_every": data.evaluate_every if scale.evaluate_every is None else scale.evaluate_every,
        "seed": number,
        "data_seed": number,
        "trial_seed": trial_seed,
        "precision": scale.precision,
    }
    return Trial(**values | more)


def shorten_schedules(method: Method, scale: Scale) -> dict[str, Any]:
    """Return hyperparameters that start the schedules of a method within the short runs of a scale; else nothing."""
    if scale.soon is None:
        return {}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(method)}
    late = [name for name, value in defaults.items() if name.endswith("_iters") and value > scale.soon]
    return dict.fromkeys(late, scale.soon) | SHORT.get(method.__name__, {})


def _modifiers(row: Row) -> dict[str, type[Modifier]]:
    return {name: modifier_class(name) for name in row.modifiers}


def _settings(scale: Scale, row: Row, data: DomainDataset) -> list[str]:
    """Return settings of the command line that apply to a row, then those that the row fixes."""
    return [*settings_for(row.combination(data), scale.settings), *row.settings]


def _network(scale: Scale, data: DomainDataset) -> dict[str, Any]:
    network = scale.network or (scale.large_network if data.large else None)
    chosen = {"network": network, "weights": scale.weights if data.large else None}
    return {name: value for name, value in chosen.items() if value is not None}
