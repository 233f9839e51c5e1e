"""The sweeps of results/PROTOCOL.md, and their runs in the packed records of a folder.

A sweep is one dataset with one network. Sweeps of the evidence compare all methods; those of `VARIANT_SWEEPS` compare
variants of POGM, those of `ABLATION_SWEEPS` change one thing of POGM at a time, those of `SEARCH_SWEEPS` search the
hyperparameters of the best methods, those of `FEWER_DOMAINS_SWEEPS` vary the number of training domains, those of
`FEWER_SAMPLES_SWEEPS` the number of samples of each, and those of `AGREEMENT_SWEEPS` measure the agreement of the steps
with the training domains (Figures 2 to 5 of the paper). A run belongs to a sweep if its trial equals a trial of ERM in
everything but the method: the same data, seeds, network and length. So differences to ERM are paired.
"""

import shlex
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pogm._system.errors import DataError
from pogm._system.files import canonical_json
from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.records import RecordWarning, Run, read_runs
from pogm.experiments import (
    evidence,
    evidence_search,
    fewer_domains,
    fewer_samples,
    figure4,
    pogm_ablation,
    pogm_variants,
)
from pogm.experiments.base import ERM, Plan, Row, Scale, find_scale

ARCHIVES = "*.tar.gz"
PLANS = {  # by the name of the experiment
    "evidence": evidence.plan,
    "evidence_search": evidence_search.plan,
    "fewer_domains": fewer_domains.plan,
    "fewer_samples": fewer_samples.plan,
    "figure4": figure4.plan,
    "pogm_ablation": pogm_ablation.plan,
    "pogm_variants": pogm_variants.plan,
}
TITLES = {  # ends of titles
    "evidence_search": ": random search",
    "fewer_domains": ": fewer training domains",
    "fewer_samples": ": fewer training samples",
    "figure4": ": agreement of the steps",
    "pogm_ablation": ": ablation of POGM",
    "pogm_variants": ": variants of POGM",
}
FOLDERS = {  # of the records of experiments that are not the evidence
    "evidence_search": "search",
    "fewer_domains": "fewer_domains",
    "fewer_samples": "fewer_samples",
    "figure4": "agreement",
    "pogm_ablation": "ablation",
    "pogm_variants": "variants",
}
OTHER_RUNS = ("centre", *FOLDERS.values())  # folders whose records are not of the evidence
RESNET50_V1 = "sha256:ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf"
MOBILENET_V2 = "sha256:73c0d2c683e077662b1de4dedd63eda6b9cb75932985656c36e000227f6f15a0"
SELECTION_ONLY = ("RotatedMNIST", "PACS", "OfficeCaltech10")  # datasets on which training images are not evaluated
FILES = {RESNET50_V1: "resnet50_imagenet_v1.safetensors", MOBILENET_V2: "mobilenet_v2_imagenet.safetensors"}


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
    weights: str = ""  # hash of the initial weights of photographs
    experiment: str = "evidence"
    first_seed: int = 0
    states_seeds: bool = False  # True if the command needs the number of seeds

    @property
    def on_gpu(self) -> bool:
        """True if the protocol asks for a GPU."""
        return self.scale_name != "small"

    @property
    def title(self) -> str:
        """Dataset and, for photographs, network."""
        title = f"{self.dataset}, {self.network}" if self.weights else self.dataset
        return title + TITLES.get(self.experiment, "")

    @property
    def words(self) -> tuple[str, ...]:
        """Options of `pogm experiment` that choose the trials."""
        found = ["--scale", self.scale_name, "--datasets", self.dataset]
        found += ["--evaluate-every", str(self.evaluate_every)] if self.evaluate_every else []
        found += ["--evaluation", "selection"] if self.dataset in SELECTION_ONLY else []
        found += ["--trials", str(self.seeds)] if self.states_seeds else []
        return (*found, "--weights", FILES[self.weights]) if self.weights else tuple(found)

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
        return PLANS[self.experiment](more)

    def needed_seeds(self, row: Row) -> int:
        """Return the number of seeds of a complete row."""
        return (
            min(self.seeds, evidence.needed_seeds(self.scale(), row)) if self.experiment == "evidence" else self.seeds
        )

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

        In the evidence, methods of other packages are rows, too. They come last.
        """
        planned = {row.name for row in self.plan}
        found: list[Run] = []
        for run in runs:
            if run.status != "done":
                continue
            if run.id in self.row_names:
                found.append(replace(run, label=self.row_names[run.id]))
            elif self.experiment == "evidence" and run.label not in planned:
                found += [run] if _without_method(run.trial) in self.paired else []
        order = {row.name: number for number, row in enumerate(self.plan)}
        return sorted(found, key=lambda run: (order.get(run.label, len(order)), run.label, run.trial_seed, run.id))

    def complete_rows(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs of the complete rows: of all seeds that have all of their runs.

        A row is complete if it has all needed seeds.
        """
        found = self.find_runs(runs)
        counts = Counter((run.label, run.trial_seed) for run in found)
        named = {row.name: row for row in self.plan}
        needed = {label: self.needed_seeds(named.get(label, Row(label))) for label in labels_of(found)}
        complete = {
            name
            for name, n in needed.items()
            if all(counts[name, self.first_seed + seed] == self.runs_of_seed for seed in range(n))
        }
        return [
            run for run in found if run.label in complete and counts[run.label, run.trial_seed] == self.runs_of_seed
        ]


Complete = Mapping[Sweep, list[Run]]  # runs of the complete rows of every sweep

SWEEPS = (
    Sweep("colored_mnist", "mnist", "ColoredMNIST", "mnist_cnn", 5, 68, 100),
    Sweep("rotated_mnist", "mnist", "RotatedMNIST", "mnist_cnn", 5, 68, 100),
    Sweep("heart_disease", "small", "HeartDisease", "mlp", 10, 63),
    Sweep("spoken_digits", "small", "SpokenDigits", "cnn1d", 10, 64),
    Sweep("amazon_reviews", "small", "AmazonReviews", "mlp", 10, 63),
    Sweep("pacs", "pacs", "PACS", "resnet50_v1", 5, 18, weights=RESNET50_V1),
    Sweep("office_caltech", "office_caltech", "OfficeCaltech10", "resnet50_v1", 5, 18, weights=RESNET50_V1),
    Sweep("office_caltech_mobilenet", "office_caltech", "OfficeCaltech10", "mobilenet_v2", 5, 18, weights=MOBILENET_V2),
)


def _variants(name: str, scale_name: str, dataset: str, network: str, weights: str = "") -> Sweep:
    seeds = pogm_variants.SEEDS
    return Sweep(name, scale_name, dataset, network, seeds, weights=weights, experiment="pogm_variants")


VARIANT_SWEEPS = (  # the seven datasets of the rule of success
    _variants("colored_mnist", "mnist", "ColoredMNIST", "mnist_cnn"),
    _variants("rotated_mnist", "mnist", "RotatedMNIST", "mnist_cnn"),
    _variants("heart_disease", "small", "HeartDisease", "mlp"),
    _variants("spoken_digits", "small", "SpokenDigits", "cnn1d"),
    _variants("amazon_reviews", "small", "AmazonReviews", "mlp"),
    _variants("pacs", "pacs", "PACS", "resnet50_v1", RESNET50_V1),
    _variants("office_caltech", "office_caltech", "OfficeCaltech10", "resnet50_v1", RESNET50_V1),
)
ABLATION_SWEEPS = (
    Sweep("colored_mnist", "mnist", "ColoredMNIST", "mnist_cnn", 5, experiment="pogm_ablation"),
    Sweep("heart_disease", "small", "HeartDisease", "mlp", 10, experiment="pogm_ablation"),
    Sweep("spoken_digits", "small", "SpokenDigits", "cnn1d", 10, experiment="pogm_ablation"),
    Sweep("amazon_reviews", "small", "AmazonReviews", "mlp", 10, experiment="pogm_ablation"),
    Sweep("pacs", "pacs", "PACS", "resnet50_v1", 3, weights=RESNET50_V1, experiment="pogm_ablation"),
)
SEARCH_SWEEPS = (  # of the datasets whose evidence is complete
    Sweep(
        "heart_disease",
        "small",
        "HeartDisease",
        "mlp",
        evidence_search.SEEDS,
        len(evidence_search.BEST["HeartDisease"]),
        experiment="evidence_search",
        first_seed=evidence_search.FIRST_SEED,
    ),
)


def _small(experiment: str) -> tuple[Sweep, ...]:
    """Return the sweeps of an experiment on the three small datasets."""
    return (
        Sweep("heart_disease", "small", "HeartDisease", "mlp", 10, experiment=experiment),
        Sweep("spoken_digits", "small", "SpokenDigits", "cnn1d", 10, experiment=experiment),
        Sweep("amazon_reviews", "small", "AmazonReviews", "mlp", 10, experiment=experiment),
    )


FEWER_DOMAINS_SWEEPS = _small("fewer_domains")
FEWER_SAMPLES_SWEEPS = _small("fewer_samples")


def _agreement(name: str, scale_name: str, dataset: str, network: str, seeds: int, weights: str = "") -> Sweep:
    return Sweep(name, scale_name, dataset, network, seeds, weights=weights, experiment="figure4", states_seeds=True)


AGREEMENT_SWEEPS = (  # the two datasets of the paper's figures that we have, and the small datasets
    _agreement("colored_mnist", "mnist", "ColoredMNIST", "mnist_cnn", 3),
    _agreement("heart_disease", "small", "HeartDisease", "mlp", 10),
    _agreement("spoken_digits", "small", "SpokenDigits", "cnn1d", 10),
    _agreement("amazon_reviews", "small", "AmazonReviews", "mlp", 10),
    _agreement("pacs", "pacs", "PACS", "resnet50_v1", 3, RESNET50_V1),
)
ALL_SWEEPS = (
    *SWEEPS,
    *VARIANT_SWEEPS,
    *ABLATION_SWEEPS,
    *SEARCH_SWEEPS,
    *FEWER_DOMAINS_SWEEPS,
    *FEWER_SAMPLES_SWEEPS,
    *AGREEMENT_SWEEPS,
)


def find_archives(folder: Path) -> list[Path]:
    """Return the archives of packed records in a folder, and those of the evidence in its subfolders."""
    below = (path for path in sorted(folder.glob(f"*/{ARCHIVES}")) if path.parent.name not in OTHER_RUNS)
    return [*sorted(folder.glob(ARCHIVES)), *below]


def read_packed(*folders: Path) -> list[Run]:
    """Read the runs of all archives in some folders, and all run folders there.

    Raises:
        DataError: If an archive cannot be read.
    """
    with TemporaryDirectory() as unpacked:
        for number, path in enumerate(path for folder in folders for path in find_archives(folder)):
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(Path(unpacked, str(number)), filter="data")
            except (OSError, EOFError, tarfile.TarError) as error:
                raise DataError(
                    f"Expected records, packed by benchmarks/pack_records.py, in {path}; found: {error}. Pack them "
                    "again."
                ) from error
        return read_runs(unpacked, *folders)


def sweeps_with_runs(runs: Sequence[Run]) -> Complete:
    """Return the runs of the complete rows of every sweep that has at least one; warn of runs of no sweep."""
    found = {sweep: sweep.complete_rows(runs) for sweep in SWEEPS}
    used = {run.id for sweep in SWEEPS for run in sweep.find_runs(runs)}
    if others := [run for run in runs if run.id not in used]:
        warnings.warn(
            f"{len(others)} of {len(runs)} runs are not of the evidence, for example {others[0].label} on "
            f"{others[0].dataset}: left out. They need the same data, seeds, network and length as ERM's runs. Tables "
            "of variants and of random searches are in results/variants/README.md and results/search/README.md.",
            RecordWarning,
            stacklevel=2,
        )
    return {sweep: complete for sweep, complete in found.items() if complete}


def read_all(folder: Path) -> dict[Sweep, list[Run]]:
    """Read the packed runs of all sweeps.

    A trial that is planned by the evidence and by another sweep has one run in the evidence. It counts for the other
    sweep, too, unless the records of that sweep have a run of their own.

    Args:
        folder: Folder of all results.
    """
    shared = read_packed(folder)
    found = {"evidence": shared}
    for experiment, name in FOLDERS.items():
        runs = {run.id: run for run in shared} | {run.id: run for run in read_packed(folder / name)}
        found[experiment] = list(runs.values())
    return {sweep: found[sweep.experiment] for sweep in ALL_SWEEPS}


def complete_sweeps(runs: Mapping[Sweep, Sequence[Run]]) -> dict[Sweep, list[Run]]:
    """Return the runs of the complete rows by sweep.

    A sweep of the evidence counts with one complete row; another one if ERM and a row with runs of its own, which the
    evidence does not have, are complete.

    Args:
        runs: Runs of all sweeps, see `read_all`.
    """
    found = dict(sweeps_with_runs(runs[SWEEPS[0]]))
    of_evidence = {id for sweep in SWEEPS for id in sweep.row_names}
    for sweep in (sweep for sweep in runs if sweep.experiment != "evidence"):
        complete = sweep.complete_rows(runs[sweep])
        own = {run.label for run in complete if run.id not in of_evidence} - {ERM.name}
        if own and any(run.label == ERM.name for run in complete):
            found[sweep] = complete
    return found


def compared_sweeps(complete: Complete) -> dict[Sweep, list[Run]]:
    """Return the sweeps in which ERM and another row are complete."""
    return {sweep: runs for sweep, runs in complete.items() if {ERM.name} < {run.label for run in runs}}


def _without_method(trial: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in trial.items() if name not in ("algorithm", "modifiers")})
