"""The sweeps of results/PROTOCOL.md: their trials, their commands, and the runs that belong to them.

A sweep is one dataset with one network. Sweeps of the evidence compare all methods; those of `VARIANT_SWEEPS` compare
variants of POGM, those of `ABLATION_SWEEPS` change one thing of POGM at a time, those of `SEARCH_SWEEPS` search the
hyperparameters of the best methods, those of `FEWER_DOMAINS_SWEEPS` vary the number of training domains, those of
`FEWER_SAMPLES_SWEEPS` the number of samples of each, those of `AGREEMENT_SWEEPS` measure the agreement of the steps
with the training domains (Figures 2 to 5 of the paper), those of `PARTS_SWEEPS` leave out parts of ERM++, and those of
`SOUP_SWEEPS` combine several runs of ERM. A run belongs to a sweep if its trial equals a trial of ERM in everything but
the method: the same data, seeds, network and length. So differences to ERM are paired.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pogm._system.files import canonical_json
from pogm.benchmark.results.records import Run
from pogm.experiments import (
    erm_plus_plus,
    evidence,
    evidence_search,
    fewer_domains,
    fewer_samples,
    figure4,
    pogm_ablation,
    pogm_variants,
    soups,
)
from pogm.experiments.base import ERM, Plan, Row, Scale, find_scale


class Kind(NamedTuple):
    """Common properties of the sweeps of an experiment."""

    plan: Callable[[Scale], Plan]
    title: str = ""  # end of their titles
    folder: str = ""  # of their records; empty for the evidence, whose records are in folders by scale
    first_seed: int = 0
    needs_trials: bool = False  # the command needs the number of seeds


class Weights(NamedTuple):
    """A file of initial weights."""

    sha256: str
    file: str


EXPERIMENTS = {
    "erm_plus_plus": Kind(erm_plus_plus.plan, ": parts of ERM++", "erm_plus_plus", needs_trials=True),
    "evidence": Kind(evidence.plan),
    "evidence_search": Kind(evidence_search.plan, ": random search", "search", evidence_search.FIRST_SEED),
    "fewer_domains": Kind(fewer_domains.plan, ": fewer training domains", "fewer_domains"),
    "fewer_samples": Kind(fewer_samples.plan, ": fewer training samples", "fewer_samples"),
    "figure4": Kind(figure4.plan, ": agreement of the steps", "agreement", needs_trials=True),
    "pogm_ablation": Kind(pogm_ablation.plan, ": ablation of POGM", "ablation"),
    "pogm_variants": Kind(pogm_variants.plan, ": variants of POGM", "variants"),
    "soups": Kind(soups.plan, ": soups and ensembles", "soups"),
}
FOLDERS = {name: kind.folder for name, kind in EXPERIMENTS.items() if kind.folder}
WEIGHTS = {  # by network of photographs
    "resnet50_v1": Weights(
        "sha256:ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf", "resnet50_imagenet_v1.safetensors"
    ),
    "mobilenet_v2": Weights(
        "sha256:73c0d2c683e077662b1de4dedd63eda6b9cb75932985656c36e000227f6f15a0", "mobilenet_v2_imagenet.safetensors"
    ),
}
ON_CPU = ("small", "features")  # scales whose runs are made on a CPU
SELECTION_ONLY = (  # datasets on which training images are not evaluated
    "RotatedMNIST",
    "PACS",
    "OfficeCaltech10",
    "PACSFeatures",
    "OfficeCaltech10Features",
)


@dataclass(frozen=True)
class Sweep:
    """All rows of an experiment on one dataset with one network."""

    name: str
    scale_name: str  # of `pogm experiment --scale`
    dataset: str
    network: str
    seeds: int  # at most; some rows are complete with fewer, see `needed_seeds`
    comparisons: int = 1  # m of Bonferroni's correction: the number of planned rows without ERM, fixed in the protocol
    evaluate_every: int | None = None  # None: that of the experiment
    experiment: str = "evidence"  # one of `EXPERIMENTS`

    @property
    def weights(self) -> str:
        """Hash of the initial weights of photographs; empty for other data."""
        return WEIGHTS[self.network].sha256 if self.network in WEIGHTS else ""

    @property
    def on_gpu(self) -> bool:
        """True if the protocol asks for a GPU."""
        return self.scale_name not in ON_CPU

    @property
    def title(self) -> str:
        """Dataset and, for photographs, network."""
        title = f"{self.dataset}, {self.network}" if self.weights else self.dataset
        return title + EXPERIMENTS[self.experiment].title

    @property
    def archive(self) -> str:
        """Path of the archive of its packed records, in the folder of all results."""
        return f"{EXPERIMENTS[self.experiment].folder or self.scale_name}/{self.name}.tar.gz"

    @property
    def words(self) -> tuple[str, ...]:
        """Options of `pogm experiment` that choose the trials."""
        found = ["--scale", self.scale_name, "--datasets", self.dataset]
        found += ["--evaluate-every", str(self.evaluate_every)] if self.evaluate_every else []
        found += ["--evaluation", "selection"] if self.dataset in SELECTION_ONLY else []
        found += ["--trials", str(self.seeds)] if EXPERIMENTS[self.experiment].needs_trials else []
        return (*found, "--weights", WEIGHTS[self.network].file) if self.weights else tuple(found)

    def command(self, rows: Sequence[str] = ()) -> str:
        """Return the command line that runs the sweep, or some of its rows."""
        chosen = ["--algorithms", *rows] if rows else []
        device = ["--device", "cuda", "--deterministic", "--compile", "on"] if self.on_gpu else ["--device", "cpu"]
        words = ["pogm", "experiment", self.experiment, *self.words, *chosen, "--data", "DATA", *device, "--out", "OUT"]
        return shlex.join(words)

    def scale(self) -> Scale:
        """Return the scale of the command line."""
        changes: dict[str, Any] = {"datasets": (self.dataset,)}
        if self.evaluate_every is not None:
            changes["evaluate_every"] = self.evaluate_every
        if self.dataset in SELECTION_ONLY:
            changes["evaluation"] = "selection"
        if self.weights:
            changes |= {"weights": self.weights, "large_network": self.network}
        return replace(find_scale(self.scale_name), **changes, changed_by=self.words[2:])

    @cached_property
    def plan(self) -> Plan:
        """All trials that count, by row: with the largest number of seeds."""
        scale = self.scale()
        more = replace(scale, seeds=self.seeds, trials=self.seeds, changed_by=(*scale.changed_by, "--trials"))
        return EXPERIMENTS[self.experiment].plan(more)

    def needed_seeds(self, row: Row) -> int:
        """Return the number of seeds of a complete row."""
        is_evidence = self.experiment == "evidence"
        return min(self.seeds, evidence.needed_seeds(self.scale(), row)) if is_evidence else self.seeds

    @property
    def first_seed(self) -> int:
        """The smallest seed."""
        return EXPERIMENTS[self.experiment].first_seed

    @cached_property
    def needed(self) -> Plan:
        """Trials by row that make it complete; the command runs them."""
        ends = {row: self.first_seed + self.needed_seeds(row) for row in self.plan}
        return {row: [trial for trial in found if trial.trial_seed < ends[row]] for row, found in self.plan.items()}

    @cached_property
    def row_names(self) -> dict[str, str]:
        """Name of the row of every planned trial, by the id of the trial."""
        return {trial.id: row.name for row, trials in self.plan.items() for trial in trials}

    @cached_property
    def paired(self) -> frozenset[str]:
        """Everything but the method, of every trial of ERM."""
        return frozenset(_without_method(trial.to_json()) for trial in self.plan[ERM])

    @cached_property
    def runs_of_seed(self) -> int:
        """Number of runs of a row with one seed: of every domain, and of every configuration of a search."""
        return sum(trial.trial_seed == self.first_seed for trial in self.plan[ERM])

    def find_runs(self, runs: Iterable[Run]) -> list[Run]:
        """Return the finished runs of the sweep, labelled and ordered by row.

        Combinations of its runs are rows, too, and so are methods of other packages in the evidence. They come last.
        """
        planned = {row.name for row in self.plan}
        found: list[Run] = []
        for run in runs:
            if run.status != "done":
                continue
            if run.id in self.row_names:
                found.append(replace(run, label=self.row_names[run.id]))
            elif run.members:
                found += [run] if self.row_names.keys() >= set(run.members) else []
            elif self.experiment == "evidence" and run.label not in planned:
                found += [run] if _without_method(run.trial) in self.paired else []
        order = {row.name: number for number, row in enumerate(self.plan)}
        return sorted(found, key=lambda run: (order.get(run.label, len(order)), run.label, run.trial_seed, run.id))

    def complete_rows(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs of the complete rows: of all seeds that have all of their runs.

        A row is complete if it has all needed seeds. A combination is one run for each held-out domain.
        """
        found = self.find_runs(runs)
        counts = Counter((run.label, run.trial_seed) for run in found)
        domains = len({trial.test_domains for trial in self.plan[ERM]})
        expected = {run.label: domains if run.members else self.runs_of_seed for run in found}
        named = {row.name: row for row in self.plan}
        needed = {label: self.needed_seeds(named.get(label, Row(label))) for label in expected}
        complete = {
            name
            for name, n in needed.items()
            if all(counts[name, self.first_seed + seed] == expected[name] for seed in range(n))
        }
        return [
            run for run in found if run.label in complete and counts[run.label, run.trial_seed] == expected[run.label]
        ]


def _without_method(trial: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in trial.items() if name not in ("algorithm", "modifiers")})


# Name, scale, dataset and network of a sweep.
COLORED_MNIST = ("colored_mnist", "mnist", "ColoredMNIST", "mnist_cnn")
ROTATED_MNIST = ("rotated_mnist", "mnist", "RotatedMNIST", "mnist_cnn")
HEART_DISEASE = ("heart_disease", "small", "HeartDisease", "mlp")
SPOKEN_DIGITS = ("spoken_digits", "small", "SpokenDigits", "cnn1d")
AMAZON_REVIEWS = ("amazon_reviews", "small", "AmazonReviews", "mlp")
PACS_FEATURES = ("pacs_features", "features", "PACSFeatures", "mlp")
OFFICE_CALTECH_FEATURES = ("office_caltech_features", "features", "OfficeCaltech10Features", "mlp")
PACS = ("pacs", "pacs", "PACS", "resnet50_v1")
OFFICE_CALTECH = ("office_caltech", "office_caltech", "OfficeCaltech10", "resnet50_v1")
SMALL = (HEART_DISEASE, SPOKEN_DIGITS, AMAZON_REVIEWS)

SWEEPS = (
    Sweep(*COLORED_MNIST, 5, 68, 100),
    Sweep(*ROTATED_MNIST, 5, 68, 100),
    Sweep(*HEART_DISEASE, 10, 63),
    Sweep(*SPOKEN_DIGITS, 10, 64),
    Sweep(*AMAZON_REVIEWS, 10, 63),
    Sweep(*PACS_FEATURES, 10, 63),
    Sweep(*OFFICE_CALTECH_FEATURES, 10, 63),
    Sweep(*PACS, 5, 18),
    Sweep(*OFFICE_CALTECH, 5, 18),
    Sweep("office_caltech_mobilenet", "office_caltech", "OfficeCaltech10", "mobilenet_v2", 5, 18),
)
VARIANT_SWEEPS = tuple(  # the seven datasets of the rule of success
    Sweep(*data, pogm_variants.SEEDS, experiment="pogm_variants")
    for data in (COLORED_MNIST, ROTATED_MNIST, *SMALL, PACS, OFFICE_CALTECH)
)
ABLATION_SWEEPS = (
    Sweep(*COLORED_MNIST, 5, experiment="pogm_ablation"),
    *(Sweep(*data, 10, experiment="pogm_ablation") for data in SMALL),
    Sweep(*PACS, 3, experiment="pogm_ablation"),
)
SEARCH_SWEEPS = (  # of the datasets whose evidence is complete
    Sweep(
        *HEART_DISEASE,
        evidence_search.SEEDS,
        len(evidence_search.BEST["HeartDisease"]),
        experiment="evidence_search",
    ),
)
FEWER_DOMAINS_SWEEPS = tuple(Sweep(*data, 10, experiment="fewer_domains") for data in SMALL)
FEWER_SAMPLES_SWEEPS = tuple(Sweep(*data, 10, experiment="fewer_samples") for data in SMALL)
PARTS_SWEEPS = (Sweep(*OFFICE_CALTECH, 3, experiment="erm_plus_plus"),)
SOUP_SWEEPS = (
    Sweep(*PACS, 3, experiment="soups"),
    *(Sweep(*data, 10, experiment="soups") for data in SMALL),
)
AGREEMENT_SWEEPS = (  # the two datasets of the paper's figures that we have, and the small datasets
    Sweep(*COLORED_MNIST, 3, experiment="figure4"),
    *(Sweep(*data, 10, experiment="figure4") for data in SMALL),
    Sweep(*PACS, 3, experiment="figure4"),
)
ALL_SWEEPS = (
    *SWEEPS,
    *VARIANT_SWEEPS,
    *ABLATION_SWEEPS,
    *SEARCH_SWEEPS,
    *FEWER_DOMAINS_SWEEPS,
    *FEWER_SAMPLES_SWEEPS,
    *AGREEMENT_SWEEPS,
    *PARTS_SWEEPS,
    *SOUP_SWEEPS,
)
