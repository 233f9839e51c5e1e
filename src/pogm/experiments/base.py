"""Rows and scales of the experiments, and the class of an experiment.

An experiment is a file of this folder with two functions. ``plan(scale)`` returns its trials by row; a drawing has
none. ``exhibits(runs, scale)`` returns its tables and figures from the runs of its plan, which come in the order of the
rows and with the names of the rows as labels. The first line of its docstring is its title. With ``BY_ROW = True`` its
rows run one after the other, so that the first ones are complete early; else the trials run seed by seed. The id of a
trial is a hash of what it computes, so experiments that plan the same trial share its run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pogm._system.errors import unknown_name_error
from pogm.benchmark.plan.combination import Combination
from pogm.benchmark.plan.trial import Trial, check_reports_test
from pogm.benchmark.results.comparison import Comparison
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import DomainDataset
from pogm.report.figure import Figure

Exhibit = Table | Comparison | Figure


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


ERM = Row("ERM")  # plain training on all domains: the baseline of most comparisons
Plan = Mapping[Row, Sequence[Trial]]  # trials by row


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
    evaluation: str = "all"  # samples that evaluations predict, as in a trial
    latest_start: int | None = None  # minibatch at which penalty schedules start, if their default is later
    settings: tuple[str, ...] = ()  # from --set: "lr=0.001" for all rows, "POGM.kappa=0.1" for one algorithm
    algorithms: tuple[str, ...] = ()  # names of the rows to run; empty: all
    folders: tuple[DomainDataset, ...] = ()  # those of `datasets` that are made from a path; their names are titles
    others: tuple[str, ...] = ()  # those of `algorithms` that are algorithms of other packages, by path
    changed_by: tuple[str, ...] = ()  # words of the command line that changed the scale

    def __post_init__(self) -> None:
        check_reports_test(self.evaluation)

    def dataset(self, name: str) -> DomainDataset:
        """Return one of the datasets by its name."""
        return next((found for found in self.folders if found.title == name), None) or dataset_class(name)()

    def printed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the datasets out of those that the paper prints; all if there are none or --datasets is given."""
        found = () if self.was_given("--datasets") else tuple(name for name in self.datasets if name in names)
        return found or self.datasets

    def selects(self, row: "Row") -> bool:
        """Return True if --algorithms names the row, or if it is not given."""
        return not self.algorithms or normalize_row_name(row.name) in set(map(normalize_row_name, self.algorithms))

    def was_given(self, option: str) -> bool:
        """Return True if the command line changed the scale by this option, such as "--steps"."""
        return option in self.changed_by


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "embedded",
            "embedded 8×8 digits and a small network; takes minutes on two cores",
            datasets=("RotatedDigits", "ColoredDigits"),
            configurations=1,
            ablation=15,  # with fewer, a trial of OfficialPOGM draws no κ = 0.05 (one of POGM draws none anyway)
            trials=2,
            network="small_cnn",
            steps=101,
            evaluate_every=20,
            latest_start=30,
        ),
        Scale(
            "small",
            "a table, audio and text; one method with ten seeds takes about ten minutes on one core",
            datasets=("HeartDisease", "SpokenDigits", "AmazonReviews"),
            configurations=1,
            ablation=20,
            trials=3,
            latest_start=40,  # a third of the shortest run; penalty schedules start at 200 to 2,500 by default
        ),
        Scale(
            "features",
            "features of photographs by a fixed ResNet-50; one method with ten seeds takes some minutes on one core",
            datasets=("PACSFeatures", "OfficeCaltech10Features"),
            configurations=1,
            ablation=20,
            trials=3,
            latest_start=100,  # of 301 minibatches, as on Office-Caltech
        ),
        Scale(
            "mnist",
            "the two MNIST datasets, three configurations; about a day on one GPU",
            datasets=("ColoredMNIST", "RotatedMNIST"),
            configurations=3,
            ablation=20,
            trials=3,
        ),
        Scale(
            "pacs",
            "PACS with a ResNet-18, or the ResNet-50 of --weights, default hyperparameters; about a day on one GPU",
            datasets=("PACS",),
            configurations=1,
            ablation=20,
            trials=3,
            large_network="resnet18",
            precision="tf32",
        ),
        Scale(
            "office_caltech",
            "Office-Caltech-10 with a ResNet-18, or the network of --weights; some hours on one GPU",
            datasets=("OfficeCaltech10",),
            configurations=1,
            ablation=20,
            trials=3,
            large_network="resnet18",
            precision="tf32",
        ),
        Scale(
            "full",
            "the paper's seven datasets, 20 configurations, 3 trials; needs a cluster",
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


def find_scale(name: str) -> Scale:
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
    by_row: bool = False  # rows run one after the other
    combines: bool = False  # combinations of its runs, made by pogm soup and pogm ensemble, are rows, too

    def rows(self, scale: Scale) -> Plan:
        """Return the planned trials by row, for the rows that the scale selects."""
        return {row: found for row, found in self.plan(scale).items() if scale.selects(row)}

    def trials(self, scale: Scale) -> list[Trial]:
        """Return all planned trials. A trial that two rows share is there twice."""
        return [trial for found in self.rows(scale).values() for trial in found]


def normalize_row_name(name: str) -> str:
    """Return the name of a row without case, spaces and punctuation: ANDMask and AND-mask are the same row."""
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter in "+.")
