"""A sweep: algorithms × datasets × held-out domains × configurations × trials, in one folder."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown
from pogm._system.files import is_empty, is_locked, read_json, readable_json, write_whole
from pogm.algorithms import algorithm_class
from pogm.benchmark.plan.parsing import Combination, apply, check_settings, settings_for
from pogm.benchmark.plan.search import configuration
from pogm.benchmark.plan.trial import Trial, dataset_from_json, differences
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.executors import Execute
from pogm.benchmark.runs.local import Outcome, run_all
from pogm.benchmark.runs.runner import Settings
from pogm.data.datasets.base import DomainDataset
from pogm.data.datasets.splits import seed_hash
from pogm.diagnostics import Probe
from pogm.modifiers import modifier_class

MODES = ("single", "full")
STATES = ("done", "running", "interrupted", "failed", "waiting")


@dataclass(frozen=True)
class Sweep:
    """What is compared with what. DomainBed's protocol: 20 configurations, 3 trials, every domain held out once.

    The mode "full" holds out every pair of domains too, which leave-one-domain-out selection needs.
    """

    algorithms: tuple[str, ...]
    datasets: tuple[DomainDataset, ...]
    configurations: int = 20
    trials: int = 3
    mode: str = "single"
    modifiers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # "lr=0.001" for every trial, "POGM.kappa=0.1" for one algorithm; not searched
    steps: int | None = None  # None: the dataset's
    evaluate_every: int | None = None
    precision: str = "fp32"
    probe_every: int = 0  # rounds; 0 for never

    def __post_init__(self) -> None:
        for name in ("configurations", "trials"):
            if getattr(self, name) < 1:
                raise UsageError(f"Expected --{name} of at least 1; found {getattr(self, name)}. Leave it out.")
        Probe.each(self.probe_every)  # refuses what is no number of rounds
        if self.mode not in MODES:
            raise unknown("a mode", self.mode, MODES)
        titles = tuple(dataset.title for dataset in self.datasets)
        for name, values in (("algorithms", self.algorithms), ("datasets", titles), ("modifiers", self.modifiers)):
            if len(set(values)) < len(values):
                raise UsageError(f"Expected each of --{name} once; found {', '.join(values)}. Leave one out.")

    def plan(self) -> list[Trial]:
        """Every trial: trial by trial and configuration by configuration, so that early results span all cells."""
        pairs = list(itertools.product(self.datasets, self.algorithms))
        kinds = {(data, name): Combination(name, self.modifiers, data) for data, name in pairs}
        check_settings(self.settings, list(kinds.values()))
        settings = {pair: settings_for(kind, self.settings) for pair, kind in kinds.items()}
        return [
            self._trial(dataset, algorithm, held_out, hparams_seed, trial_seed, settings[dataset, algorithm])
            for trial_seed in range(self.trials)
            for hparams_seed in range(self.configurations)
            for dataset in self.datasets
            for held_out in self._held_out(dataset)
            for algorithm in self.algorithms
        ]

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
        settings = settings_for(Combination(algorithm, self.modifiers, dataset), self.settings)
        return self._trial(dataset, algorithm, list(held_out), hparams_seed, trial_seed, settings)

    def _held_out(self, dataset: DomainDataset) -> list[list[int]]:
        count = len(dataset.domains)
        pairs = itertools.combinations(range(count), 2) if self.mode == "full" else ()
        return [*([domain] for domain in range(count)), *map(list, pairs)]

    def _trial(
        self,
        data: DomainDataset,
        algorithm: str,
        held_out: list[int],
        hparams_seed: int,
        trial_seed: int,
        settings: Sequence[str],
    ) -> Trial:
        seed = seed_hash(data.seed_name, algorithm, held_out, hparams_seed, trial_seed)
        drawn = {
            "algorithm": configuration(algorithm_class(algorithm)(), hparams_seed, trial_seed, data.large),
            "training": configuration(data.training, hparams_seed, trial_seed),
            "dataset": data,
            **{
                name: configuration(modifier_class(name)(), hparams_seed, trial_seed, data.large)
                for name in self.modifiers
            },
        }
        apply(settings, drawn, f"a hyperparameter of {algorithm} on {data.title}")
        return Trial(
            dataset=drawn.pop("dataset"),
            algorithm=drawn.pop("algorithm"),
            training=drawn.pop("training"),
            modifiers=tuple(drawn.values()),
            test_domains=tuple(held_out),
            steps=data.steps if self.steps is None else self.steps,
            evaluate_every=data.evaluate_every if self.evaluate_every is None else self.evaluate_every,
            seed=seed,
            data_seed=seed,
            trial_seed=trial_seed,
            hparams_seed=hparams_seed,
            precision=self.precision,
            probe=Probe.each(self.probe_every),
        )


def save_sweep(sweep: Sweep, folder: Path) -> None:
    """Make the folder the sweep's; one that belongs to another sweep, or to something else, is refused."""
    path = folder / "sweep.json"
    if path.exists():
        if unlike := differences(_plain(load_sweep(folder), titles=False), _plain(sweep, titles=False)):
            raise UsageError(
                f"Expected {folder} to be new or to belong to this sweep; found another's: {unlike}. "
                "Choose another --out."
            )
        return
    if folder.exists() and not is_empty(folder):
        raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")
    make_folder(folder)
    write_whole(path, readable_json(_plain(sweep)))


def load_sweep(folder: Path) -> Sweep:
    """The sweep of a folder."""
    path = folder / "sweep.json"
    if not path.exists():
        raise UsageError(f"Expected a sweep's folder with sweep.json; found none in {folder}. Start one: pogm sweep")
    values = read_json(path)
    names = {field.name for field in dataclasses.fields(Sweep)}
    if not isinstance(values, dict) or set(values) != names:
        raise UsageError(f"Expected the fields {', '.join(sorted(names))} in {path}; found others. Restore it.")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    datasets = tuple(dataset_from_json(value) for value in lists.get("datasets", ()))
    try:
        sweep = Sweep(**values | lists | {"datasets": datasets})
    except TypeError as error:  # a text where a number should be
        raise UsageError(f"Expected {path} as `pogm sweep` wrote it; found: {error}. Restore it.") from error
    if unlike := differences(values, _plain(sweep)):
        raise UsageError(f"Expected {path} as `pogm sweep` wrote it; found that {unlike}. Restore it.")
    return sweep


def state_of(folder: Path) -> str:
    """How a run stands, from its folder alone."""
    if (folder / "done").exists():
        return "done"
    if is_locked(folder):
        return "running"
    if (folder / "failed.json").exists():
        return "failed"
    return "interrupted" if (folder / "trial.json").exists() else "waiting"


def status(sweep: Sweep, folder: Path) -> dict[tuple[str, str], Counter[str]]:
    """How many runs of each algorithm and dataset are in which state."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for trial in sweep.plan():
        counts.setdefault((trial.dataset.title, trial.label), Counter())[state_of(folder / trial.id)] += 1
    return counts


def carry_out(
    trials: Sequence[Trial], folder: Path, settings: Settings, execute: Execute = run_all, retry_failed: bool = False
) -> Iterator[Outcome]:
    """Run what is waiting or was interrupted, and what failed if asked to; an outcome for every trial.

    Finished runs are not computed again, and running ones belong to whoever runs them.
    """
    todo = []
    for trial in trials:
        state = state_of(folder / trial.id)
        if state in ("waiting", "interrupted") or (state == "failed" and retry_failed):
            todo.append(trial)
        elif state == "failed":
            yield Outcome(trial, read_json(folder / trial.id / "failed.json")["error"])
        else:
            yield Outcome(trial)
    yield from execute(todo, folder, settings)


def _plain(sweep: Sweep, titles: bool = True) -> dict[str, Any]:
    """As JSON values; without ``titles``, only what a sweep is: a folder of images may be renamed."""
    values = {field.name: getattr(sweep, field.name) for field in dataclasses.fields(sweep)}
    facts = [dataset.to_json() for dataset in sweep.datasets]
    values["datasets"] = [{n: v for n, v in fact.items() if titles or n != "title"} for fact in facts]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
