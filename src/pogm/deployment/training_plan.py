"""Plan of the runs behind one model: their number, their length, and their time limits."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pogm._system.errors import DataError, UsageError
from pogm._system.files import canonical_json, read_json, readable_json, write_atomic
from pogm._system.saved import check_form
from pogm.benchmark.combining.checks import find_live_norms
from pogm.benchmark.plan.combination import Combination
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.plan.settings import check_settings, settings_for
from pogm.benchmark.plan.shared_training import share_training
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.estimate import measure_cost
from pogm.benchmark.runs.context import use_threads
from pogm.benchmark.runs.runner import RunOptions
from pogm.data.datasets.base import Domain, DomainDataset, split_domain
from pogm.models.weights import RANDOM

PLAN = "plan.json"
EPOCHS = 20  # default length: each image of a site of median size is drawn about this often
LEAST_STEPS, MOST_STEPS = 100, 5001
EVALUATIONS = 10  # of each run
VALIDATION_SHARE = 0.2  # part of a site that an evaluation predicts; at the end all of it is predicted
TRAINING_SHARE = 0.9  # part of the time after which runs are stopped: then held-out sites are predicted
PLANNED_SHARE = 0.75  # part of the time that is planned: processes start, and slow one another down


@dataclass(frozen=True)
class TrainingPlan:
    """All runs behind one model.

    Attributes:
        sites: Names of the sites that may be used for training.
        forecasts: For each algorithm, one run for each site, which holds out that site.
        finals: For each algorithm, the run on all sites. Only that of the chosen algorithm is trained.
        soup: Number of runs of a greedy soup, instead of each of these runs; see `members`.
    """

    sites: tuple[str, ...]
    forecasts: Mapping[str, Sequence[Trial]]
    finals: Mapping[str, Trial]
    soup: int = 1

    def members(self, *trials: Trial) -> list[Trial]:
        """Return the runs that are trained instead of runs of the plan: these, then others with other minibatches.

        So a time limit leaves one model for each run of the plan before it leaves more.
        """
        groups = [trial.soup_members(self.soup) for trial in trials]
        return [member for members in zip(*groups, strict=True) for member in members]

    @property
    def trials(self) -> list[Trial]:
        """All runs that hold out a site."""
        return self.members(*(trial for trials in self.forecasts.values() for trial in trials))

    @property
    def first_trials(self) -> list[Trial]:
        """Runs that do not depend on results of other runs; with one algorithm, also those on all sites."""
        held_out = [trial for trials in self.forecasts.values() for trial in trials]
        return self.members(*held_out, *(self.finals.values() if len(self.finals) == 1 else ()))


def make_plan(
    dataset: DomainDataset,
    algorithms: Sequence[str],
    hold_out: Sequence[str],
    settings: Sequence[str],
    steps: int,
    soup: int = 1,
    **options: Any,
) -> TrainingPlan:
    """Plan the runs behind a model.

    Args:
        dataset: Images of all sites.
        algorithms: Algorithms to compare, alone or with modifiers ("ERM + SWAD"); with one, nothing is compared.
        hold_out: Sites that are never used for training.
        settings: Hyperparameters as texts, such as "lr=1e-4".
        steps: Minibatches of each site.
        soup: Number of runs of a greedy soup, instead of each run.
        options: Other fields of the trials.

    Raises:
        UsageError: If a site is unknown, fewer than two sites are left, or the weights of runs cannot be averaged.
    """
    hold_out = tuple(dict.fromkeys(hold_out))
    unknown = [site for site in hold_out if site not in dataset.domains]
    if unknown:
        raise UsageError(
            f"Expected sites to hold out from {', '.join(dataset.domains)}; found {', '.join(unknown)}. "
            "Write the name of a folder."
        )
    sites = tuple(site for site in dataset.domains if site not in hold_out)
    if len(sites) < 2:
        raise UsageError(
            f"Expected at least two sites for training; found {len(sites)} of {dataset.title}'s "
            f"{len(dataset.domains)}. Domain generalization needs data from several sites."
        )
    every = max(steps // EVALUATIONS, 1)
    names = {text.partition("=")[0].rpartition(".")[2] for text in settings}
    if hasattr(dataset.training, "eval_augment") and "eval_augment" not in names:
        settings = (*settings, "eval_augment=false")  # validation images as they will be in use

    combinations = {method: Combination.parse(method, dataset) for method in algorithms}
    check_settings(settings, list(combinations.values()), "--compare")

    def plan(method: str, held_out: Sequence[str]) -> Trial:
        return build_trial(
            dataset,
            combinations[method].algorithm,
            held_out,
            modifiers=combinations[method].modifiers,
            settings=settings_for(combinations[method], settings),
            steps=steps,
            evaluate_every=every,
            evaluation="validation",  # a held-out site is predicted once, by the selected model
            **options,
        )

    finals = {name: plan(name, hold_out) for name in algorithms}
    if soup > 1:
        _check_averages(finals.values())
    forecasts = {name: [plan(name, (*hold_out, site)) for site in sites] for name in algorithms}
    return TrainingPlan(sites, forecasts, finals, soup)


def _check_averages(trials: Iterable[Trial]) -> None:
    """Check that the weights of runs can be averaged, before they are trained. Only models that adapt may be refused.

    Raises:
        UsageError: If the statistics of batch norm could not be computed again for an average.
    """
    for trial in trials:
        if trial.adapts:
            network = replace(trial, training=replace(trial.training, weights=RANDOM)).task(None).build_network()
            find_live_norms(trial, network, "Leave --soup out, or choose another algorithm.")


def check_data(plan: TrainingPlan, domains: Sequence[Domain]) -> None:
    """Check the images of all sites for all runs before the first one, so that no run fails after hours.

    Raises:
        DataError: If there is one class only, or if a site is too small to be split or has a class that no other has.
    """
    dataset = plan.trials[0].dataset
    if dataset.task == "classification" and dataset.num_classes < 2:
        raise DataError(
            f"Expected at least two classes in {dataset.title}; found {dataset.num_classes}. Add "
            "images of another class."
        )
    for trial in plan.trials:
        trial.dataset.check(list(domains), trial.test_domains)
    for number, domain in enumerate(domains):
        name = dataset.domains[number]
        split_domain(domain, number, trial.trial_seed, name, is_trained=name in plan.sites)


def default_steps(dataset: DomainDataset, counts: Sequence[int], batch_size: int) -> int:
    """Return the default number of minibatches for sites with these numbers of images."""
    median = sorted(counts)[len(counts) // 2]
    return min(max(EPOCHS * median // batch_size, LEAST_STEPS), MOST_STEPS, dataset.steps)


def steps_in_time(plan: TrainingPlan, deadline: float, options: RunOptions, workers: int) -> int:
    """Return the number of minibatches that fits into the time until ``deadline``, from a measurement of a few steps.

    The time is that of the runs which one process trains one after the other, and of the predictions at all sites.

    Raises:
        UsageError: If the time does not suffice for a useful number of minibatches.
    """
    with use_threads(options.threads):
        costs = [measure_cost(trials[0], options) for trials in plan.forecasts.values()]
    step, evaluation = fmean(cost[0] for cost in costs), fmean(cost[1] for cost in costs)
    runs = sum(_count_in_a_row(plan, options, workers))
    evaluated = len(plan.first_trials) / len(share_training(plan.first_trials))  # runs of one training
    evaluations = runs * evaluated * (EVALUATIONS + 2) + len(plan.finals) / VALIDATION_SHARE
    if plan.soup > 1:  # a greedy soup predicts the validation images with each run, with each average, and at its end
        evaluations += (2 + 1 / plan.soup) * (len(plan.trials) + plan.soup)
    seconds = deadline - time.monotonic()
    steps = int((PLANNED_SHARE * seconds - evaluations * evaluation) / (runs * step))
    if steps < EVALUATIONS:
        least = (EVALUATIONS * step * runs + evaluations * evaluation) / (PLANNED_SHARE * 60)
        count = len(plan.trials) + plan.soup
        raise UsageError(
            f"Expected time for at least {EVALUATIONS} minibatches in each of {count} runs; found "
            f"{max(seconds, 0):.0f} s, with {step:.2g} s for a minibatch and {evaluation:.2g} s for an evaluation. "
            f"Pass --minutes {math.ceil(2 * least)} or more, a smaller --network, or smaller images (--set "
            "image_size=128)."
        )
    return min(steps, MOST_STEPS)


def plan_deadlines(
    plan: TrainingPlan, deadline: float | None, options: RunOptions, workers: int
) -> tuple[float | None, float | None]:
    """Return the times at which the first runs and all runs must end, so that the command ends at ``deadline``."""
    if deadline is None:
        return None, None
    first, later = _count_in_a_row(plan, options, workers)
    now = time.monotonic()
    seconds = TRAINING_SHARE * (deadline - now)
    return now + seconds * first / (first + later), now + seconds


def _count_in_a_row(plan: TrainingPlan, options: RunOptions, workers: int) -> tuple[int, int]:
    """Return how many of the first runs one process trains one after the other, and how many follow all of them.

    Runs that share their training count as one.
    """
    processes = workers if options.engine.torch_device().type == "cpu" else 1
    later = plan.soup if len(plan.finals) > 1 else 0
    return math.ceil(len(share_training(plan.first_trials)) / processes), math.ceil(later / processes)


def read_steps(folder: Path, options: Mapping[str, Any]) -> int | None:
    """Return the number of minibatches of a training that began earlier; None if it has not begun.

    Args:
        folder: Folder of the model.
        options: Everything that determines the runs, as JSON values.

    Raises:
        UsageError: If the training began with other options.
    """
    path = folder / PLAN
    if not path.exists():
        return None
    found = read_json(path)
    try:
        check_form(found, {"options": {}, "steps": int}, PLAN)
    except ValueError as error:
        raise UsageError(f"In {path}: {error}. Choose another --out.") from error
    known, options = found["options"], json.loads(canonical_json(options))  # lists instead of tuples, as in the file
    different = sorted(name for name in {*known, *options} if known.get(name) != options.get(name))
    if different:
        raise UsageError(
            f"Expected the options that the training in {folder} began with; found others for "
            f"{', '.join(different)}. Give the same command to continue it, or another --out."
        )
    return int(found["steps"])


def write_steps(folder: Path, options: Mapping[str, Any], steps: int) -> None:
    """Write the options and the number of minibatches of a training that begins."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / PLAN, readable_json({"options": json.loads(canonical_json(options)), "steps": steps}))
