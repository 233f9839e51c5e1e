"""What experiments share: the scales at which they run, how their trials are planned, and what they show.

An experiment is a file of this folder with two functions. ``plan(scale)`` gives its trials, none for a drawing;
``exhibits(runs, scale)`` gives its tables and figures, from the runs of its own plan, whatever became of them. The
first line of its docstring is its title. Trials are known by what they compute, so experiments that plan the same trial
share its run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pogm.algorithms import algorithm_class
from pogm.algorithms.base import Algorithm
from pogm.benchmark.comparison import Comparison
from pogm.benchmark.records import Run
from pogm.benchmark.sweep import Sweep
from pogm.benchmark.tables import Table
from pogm.benchmark.trial import Trial
from pogm.core.errors import unknown
from pogm.core.hyper import fields, suited
from pogm.datasets import dataset_class
from pogm.datasets.base import DomainDataset
from pogm.datasets.splits import seed_hash
from pogm.modifiers import Modifier, modifier_class
from pogm.report.figure import Figure

Exhibit = Table | Comparison | Figure
Method = type[Algorithm] | type[Modifier]
SHORT = {"Fishr": {"penalty": 100.0}}  # in short runs, as in the demo


@dataclass(frozen=True)
class Scale:
    """How large an experiment is: on which data, how many runs, how long each. None is what the dataset says."""

    name: str
    summary: str
    datasets: tuple[str, ...]
    configurations: int  # of a search; the first is the defaults
    ablation: int  # configurations of POGM's own search, for Tables 3 to 5
    trials: int  # repetitions of a search, with other seeds and splits
    seeds: int = 3  # repetitions of what the figures measure
    network: str | None = None
    weights: str | None = None  # of networks for photographs
    steps: int | None = None
    evaluate_every: int | None = None
    precision: str = "fp32"
    probe_every: int = 10  # rounds between measurements, in the figures
    soon: int | None = None  # schedules that would begin later than these runs end begin after so many minibatches


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "embedded",
            "digits of 8×8 that come with the package and a small network: minutes on two cores",
            datasets=("RotatedDigits", "ColoredDigits"),
            configurations=1,
            ablation=15,  # with fewer, some trial draws no κ = 0.05
            trials=2,
            network="small_cnn",
            steps=101,
            evaluate_every=20,
            probe_every=1,
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
            "PACS with a ResNet-18, default hyperparameters: about a day on one GPU",
            datasets=("PACS",),
            configurations=1,
            ablation=20,
            trials=3,
            network="resnet18",
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
    """A scale by its name."""
    if name not in SCALES:
        raise unknown("a scale", name, SCALES)
    return SCALES[name]


@dataclass(frozen=True)
class Experiment:
    """One file of this folder."""

    name: str
    title: str
    text: str  # what it shows, in paragraphs
    plan: Callable[[Scale], list[Trial]]
    exhibits: Callable[[Sequence[Run], Scale], list[Exhibit]]


def searched(
    scale: Scale,
    algorithm: str,
    *modifiers: str,
    configurations: int | None = None,
    datasets: tuple[str, ...] | None = None,
) -> list[Trial]:
    """DomainBed's search for one row of a table: every domain held out, every configuration, every trial."""
    methods: dict[str, Method] = {"algorithm": algorithm_class(algorithm)}
    methods |= {name: modifier_class(name) for name in modifiers}
    in_all = [f"{owner}.{n}={v}" for owner, method in methods.items() for n, v in in_time(method, scale).items()]
    trials = []
    for data in (dataset_class(name)() for name in datasets or scale.datasets):
        trials += Sweep(
            algorithms=(algorithm,),
            datasets=(data,),
            configurations=configurations or scale.configurations,
            trials=scale.trials,
            modifiers=modifiers,
            settings=(*in_all, *(f"training.{n}={v}" for n, v in _network(scale, data).items())),
            steps=scale.steps,
            evaluate_every=scale.evaluate_every,
            precision=scale.precision,
        ).plan()
    return trials


def default_trial(
    scale: Scale, dataset: str, algorithm: Algorithm, held_out: int, trial_seed: int, **more: Any
) -> Trial:
    """One trial outside of a search. Algorithms are compared on the same data, first weights and minibatches.

    ``more`` is any other field of a trial, such as ``probe``. For an algorithm whose schedule fits the scale:
    ``Fishr(**in_time(Fishr, scale))``.
    """
    data = dataset_class(dataset)()
    number = seed_hash(data.seed_name, held_out, trial_seed)
    values: dict[str, Any] = {
        "dataset": data,
        "algorithm": suited(algorithm, data.large),
        "test_domains": (held_out,),
        "training": replace(data.training, **_network(scale, data)),
        "steps": data.steps if scale.steps is None else scale.steps,
        "evaluate_every": data.evaluate_every if scale.evaluate_every is None else scale.evaluate_every,
        "seed": number,
        "data_seed": number,
        "trial_seed": trial_seed,
        "precision": scale.precision,
    }
    return Trial(**values | more)


def in_time(method: Method, scale: Scale) -> dict[str, Any]:
    """The hyperparameters that keep a method's schedule inside the runs of a scale; none where they are long enough."""
    if scale.soon is None:
        return {}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(method)}
    late = [name for name, value in defaults.items() if name.endswith("_iters") and value > scale.soon]
    return dict.fromkeys(late, scale.soon) | SHORT.get(method.__name__, {})


def _network(scale: Scale, data: DomainDataset) -> dict[str, Any]:
    chosen = {"network": scale.network, "weights": scale.weights if data.large else None}
    return {name: value for name, value in chosen.items() if value is not None}
