"""From images of several sites to one model: leave one site out at a time, choose an algorithm, train on all sites."""

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from pogm._system.errors import DataError, InUseError, UsageError
from pogm._system.files import canonical_json, read_json, readable_json, write_atomic
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.classification import (
    ClassificationMetrics,
    classification_metrics,
    fit_temperature,
    scale_temperature,
    softmax,
)
from pogm.benchmark.results.record_digest import DONE
from pogm.benchmark.results.regression import RegressionMetrics, regression_metrics
from pogm.benchmark.runs.context import use_threads
from pogm.benchmark.runs.estimate import measure_cost
from pogm.benchmark.runs.runner import RunOptions
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL, read_description
from pogm.data.datasets.base import Domain, DomainDataset, split_domain
from pogm.deployment.card import write_card
from pogm.deployment.forecast import Forecast, SiteResult, forecast
from pogm.deployment.model import TrainedModel, load

PLAN = "plan.json"
RUNS = "runs"
EPOCHS = 20  # default length: each image of a site of median size is drawn about this often
LEAST_STEPS, MOST_STEPS = 100, 5001
EVALUATIONS = 10  # of each run
VALIDATION_SHARE = 0.2  # part of a site that an evaluation predicts; at the end all of it is predicted
TRAINING_SHARE = 0.9  # part of the time after which runs are stopped: then held-out sites are predicted
PLANNED_SHARE = 0.75  # part of the time that is planned: processes start, and slow one another down
PREDICTION_BATCH = 64


@dataclass(frozen=True)
class TrainingPlan:
    """All runs behind one model.

    Attributes:
        sites: Names of the sites that may be used for training.
        forecasts: For each algorithm, one run for each site, which holds out that site.
        finals: For each algorithm, the run on all sites. Only that of the chosen algorithm is trained.
    """

    sites: tuple[str, ...]
    forecasts: Mapping[str, Sequence[Trial]]
    finals: Mapping[str, Trial]

    @property
    def trials(self) -> list[Trial]:
        """All runs that hold out a site."""
        return [trial for trials in self.forecasts.values() for trial in trials]

    @property
    def first_trials(self) -> list[Trial]:
        """The runs that need no result of others: with one algorithm also the run on all sites."""
        return [*self.trials, *(self.finals.values() if len(self.finals) == 1 else ())]


def make_plan(
    dataset: DomainDataset,
    algorithms: Sequence[str],
    hold_out: Sequence[str],
    settings: Sequence[str],
    steps: int,
    **options: Any,
) -> TrainingPlan:
    """Plan the runs behind a model.

    Args:
        dataset: Images of all sites.
        algorithms: Algorithms to compare; with one, nothing is compared.
        hold_out: Sites that are never used for training.
        settings: Hyperparameters as texts, such as "lr=1e-4".
        steps: Minibatches of each site.
        options: Other fields of the trials.

    Raises:
        UsageError: If a site is unknown, or fewer than two sites are left.
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

    def plan(algorithm: str, held_out: Sequence[str]) -> Trial:
        return build_trial(
            dataset,
            algorithm,
            held_out,
            settings=settings,
            steps=steps,
            evaluate_every=every,
            evaluation="validation",  # a held-out site is predicted once, by the selected model
            **options,
        )

    return TrainingPlan(
        sites=sites,
        forecasts={name: [plan(name, (*hold_out, site)) for site in sites] for name in algorithms},
        finals={name: plan(name, hold_out) for name in algorithms},
    )


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
        split_domain(domain, number, trial.trial_seed, trial.dataset.domains[number])


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
    evaluations = runs * (EVALUATIONS + 2) + len(plan.finals) / VALIDATION_SHARE
    seconds = deadline - time.monotonic()
    steps = int((PLANNED_SHARE * seconds - evaluations * evaluation) / (runs * step))
    if steps < EVALUATIONS:
        least = (EVALUATIONS * step * runs + evaluations * evaluation) / (PLANNED_SHARE * 60)
        raise UsageError(
            f"Expected time for at least {EVALUATIONS} minibatches in each of {len(plan.trials) + 1} runs; found "
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
    """Return how many of the first runs one process trains one after the other, and how many follow all of them."""
    processes = workers if options.engine.torch_device().type == "cpu" else 1
    return math.ceil(len(plan.first_trials) / processes), int(len(plan.finals) > 1)


def fix_plan(folder: Path, options: Mapping[str, Any], steps: int | None) -> int | None:
    """Return the number of minibatches of an interrupted training, or write it down.

    Args:
        folder: Folder of the model.
        options: Everything that determines the runs, as JSON values.
        steps: Number of minibatches to write; None to read only.

    Returns:
        The number that was written when the training began; None if it has not begun.

    Raises:
        UsageError: If the training began with other options.
    """
    path = folder / PLAN
    options = json.loads(canonical_json(options))  # as they are read again: lists instead of tuples
    if path.exists():
        found = read_json(path)
        known = found.get("options", {})
        different = sorted(name for name in {*known, *options} if known.get(name) != options.get(name))
        if different:
            raise UsageError(
                f"Expected the options that the training in {folder} began with; found others for "
                f"{', '.join(different)}. Give the same command to continue it, or another --out."
            )
        return int(found["steps"])
    if steps is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, readable_json({"options": options, "steps": steps}))
    return steps


def predict_site(model: TrainedModel, trial: Trial, site: int, data: Path | None) -> SiteResult:
    """Predict all images of a site, as they are stored in the cache."""
    domain = trial.task(data).load()[site]
    return SiteResult(trial.dataset.domains[site], predict_stored(model, domain.inputs), domain.labels)


def predict_validation(model: TrainedModel, trial: Trial, data: Path | None) -> SiteResult:
    """Predict the validation images of all training sites, which selected the step of the model."""
    domains = trial.task(data).load()
    logits, labels = [], []
    for number in trial.train_domains:
        _, chosen = split_domain(domains[number], number, trial.trial_seed, trial.dataset.domains[number])
        logits.append(predict_stored(model, domains[number].inputs[chosen]))
        labels.append(domains[number].labels[chosen])
    return SiteResult("validation", torch.cat(logits), torch.cat(labels))


def predict_stored(model: TrainedModel, images: Tensor) -> Tensor:
    """Return the logits of stored inputs [N, ...] of one site."""
    device = next(model.parameters()).device
    size = model.batch_size or PREDICTION_BATCH
    predict = model.predictor()  # one for the site: ITTA keeps state between batches
    with torch.no_grad():
        parts = [
            predict(model.transform.transform.prepare(part.to(device), model.statistics)).cpu()
            for part in torch.split(images, size)
        ]
    return torch.cat(parts)


def held_out_results(
    trials: Sequence[Trial], folder: Path, hold_out: Sequence[str], data: Path | None, cut: Collection[str] = ()
) -> Iterator[SiteResult]:
    """Yield, for each run, the predictions of its selected model at the site that it holds out for the forecast.

    Args:
        trials: Trials of the runs.
        folder: Folder of the model.
        hold_out: Sites that are never used for training.
        data: Data folder.
        cut: Ids of the trials that a time limit stopped before their last step.

    Raises:
        InUseError: If another process still trains one of the runs, such as a worker of a command that was killed.
        UsageError: If a run was stopped before its first evaluation.
    """
    for trial in trials:
        names = [trial.dataset.domains[number] for number in trial.test_domains]
        (site,) = [name for name in names if name not in hold_out]
        model = _load_run(trial, folder, cut)
        yield predict_site(model, trial, trial.dataset.domains.index(site), data)


def _load_run(trial: Trial, folder: Path, cut: Collection[str]) -> TrainedModel:
    """Load the selected model of a run that is finished, or that a time limit stopped."""
    run = folder / RUNS / trial.id
    if trial.id in cut:
        if not (run / MODEL / DESCRIPTION).exists():
            raise UsageError(
                f"Expected an evaluation of every run within the time limit; found none in {run}. Give the same "
                "command again to continue, or begin again with more --minutes and another --out."
            )
    elif not (run / DONE).exists():
        raise InUseError(
            f"Expected a finished run in {run}; found one that another process still trains. Wait until it ends, "
            "then give the same command again."
        )
    return load(run)


def choose_algorithm(results: Mapping[str, Sequence[SiteResult]]) -> tuple[str, dict[str, Forecast]]:
    """Return the algorithm with the highest mean accuracy, or R², at held-out sites, and the forecast of each.

    The first one of equals is chosen.
    """
    forecasts = {
        name: forecast([site.accuracy for site in sites], _task(sites), [len(site.labels) for site in sites])
        for name, sites in results.items()
    }
    return max(forecasts, key=lambda name: forecasts[name].mean), forecasts


def finish_model(
    plan: TrainingPlan,
    chosen: str,
    results: Mapping[str, Sequence[SiteResult]],
    forecasts: Mapping[str, Forecast],
    folder: Path,
    data: Path | None,
    cut: Collection[str] = (),
) -> None:
    """Write the model that was trained on all sites, with the forecast, its temperature, and a model card.

    Args:
        plan: All runs.
        chosen: Algorithm of the model.
        results: Predictions at held-out sites, by algorithm.
        forecasts: Forecast for a new site, by algorithm.
        folder: Folder of the model.
        data: Data folder.
        cut: Ids of the trials that a time limit stopped before their last step.
    """
    final = plan.finals[chosen]
    run = folder / RUNS / final.id
    model = _load_run(final, folder, cut)
    sites = {found.site: _metrics(found, model.classes) for found in results[chosen]}
    extra: dict[str, Any] = {
        "forecast": _forecast_json(forecasts[chosen]),
        "compared": {name: _forecast_json(found) for name, found in forecasts.items()},
        "sites": {name: found.to_json() for name, found in sites.items()},
        **({"stopped_runs": len(cut)} if cut else {}),
    }
    if model.task == "classification":
        validation = predict_validation(model, final, data)
        temperature = fit_temperature(validation.logits.numpy(), validation.labels.numpy())
        extra["temperature"] = temperature
        extra["calibration"] = {
            found.site: scale_temperature(found.logits.numpy(), found.labels.numpy(), temperature).to_json()
            for found in results[chosen]
        }
    description = write_model(run, folder, extra)
    write_card(folder, description, sites, results[chosen], final, data)


def _task(results: Sequence[SiteResult]) -> str:
    return "regression" if results[0].labels.is_floating_point() else "classification"


def _metrics(found: SiteResult, classes: Sequence[str]) -> ClassificationMetrics | RegressionMetrics:
    if found.labels.is_floating_point():
        return regression_metrics(found.logits.squeeze(-1).numpy(), found.labels.numpy())
    return classification_metrics(softmax(found.logits.numpy()), found.labels.numpy(), classes)


def _forecast_json(found: Forecast) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "accuracies": list(found.accuracies)}


def write_model(run: Path, folder: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the selected model of a run into the folder of the model, with further facts in its description.

    Returns:
        The description.
    """
    description = {**read_description(run / MODEL), **extra}
    name = description["weights"]["file"]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / name, (run / MODEL / name).read_bytes())
    write_atomic(folder / DESCRIPTION, readable_json(description))
    return description
