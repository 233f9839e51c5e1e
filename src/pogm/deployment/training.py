"""From finished runs to one model: predict held-out sites, choose an algorithm, write the model and its card."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import DataError, InUseError, UsageError
from pogm._system.files import readable_json, write_atomic
from pogm._system.messages import note
from pogm.benchmark.combining.combine import combine, plan_combinations
from pogm.benchmark.combining.members import Group, read_member
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.classification import (
    ClassificationMetrics,
    classification_metrics,
    fit_temperature,
    scale_temperature,
    softmax,
)
from pogm.benchmark.results.record_digest import DONE
from pogm.benchmark.results.records import read_run
from pogm.benchmark.results.regression import RegressionMetrics, regression_metrics
from pogm.benchmark.runs.runner import RunOptions
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL, read_description
from pogm.data.datasets.base import split_domain
from pogm.deployment.card import write_card
from pogm.deployment.forecast import Forecast, SiteResult, forecast
from pogm.deployment.model import TrainedModel, load
from pogm.deployment.predict import predict_stored
from pogm.deployment.training_plan import TrainingPlan
from pogm.modifiers.base import Modifier

RUNS = "runs"
SOUPS, GREEDY = "soup", "greedy"  # folder of averages, and how runs are averaged
PREDICTION_BATCH = 64


def predict_site(model: TrainedModel, trial: Trial, site: int, data: Path | None) -> SiteResult:
    """Predict the images of a held-out site, as they are stored in the cache, without those of the split ``test``."""
    domain, name = trial.task(data).load()[site], trial.dataset.domains[site]
    if domain.splits is None:
        return SiteResult(name, predict_stored(model, domain.inputs, PREDICTION_BATCH), domain.labels)
    used = torch.cat(split_domain(domain, site, trial.trial_seed, name, is_trained=False)).sort().values
    return SiteResult(name, predict_stored(model, domain.inputs[used], PREDICTION_BATCH), domain.labels[used], used)


def predict_validation(model: TrainedModel, trial: Trial, data: Path | None) -> SiteResult:
    """Predict the validation images of all training sites, which selected the step of the model."""
    domains = trial.task(data).load()
    logits, labels = [], []
    for number in trial.train_domains:
        _, chosen = split_domain(domains[number], number, trial.trial_seed, trial.dataset.domains[number])
        logits.append(predict_stored(model, domains[number].inputs[chosen], PREDICTION_BATCH))
        labels.append(domains[number].labels[chosen])
    return SiteResult("validation", torch.cat(logits), torch.cat(labels))


def held_out_results(
    plan: TrainingPlan,
    algorithm: str,
    folder: Path,
    hold_out: Sequence[str],
    options: RunOptions,
    cut: Collection[str] = (),
) -> Iterator[SiteResult]:
    """Yield the predictions at each site of the model that was trained without it for the forecast.

    Args:
        plan: All runs.
        algorithm: Algorithm of the plan.
        folder: Folder of the model.
        hold_out: Sites that are never used for training.
        options: Data folder, and the device that averages weights.
        cut: Ids of the trials that a time limit stopped before their last step.

    Raises:
        InUseError: If another process still trains one of the runs, such as a worker of a command that was killed.
        UsageError: If a run was stopped before its first evaluation.
    """
    for trial in plan.forecasts[algorithm]:
        names = [trial.dataset.domains[number] for number in trial.test_domains]
        (site,) = [name for name in names if name not in hold_out]
        model = load(_find_model(plan.members(trial), folder, options, cut))
        yield predict_site(model, trial, trial.dataset.domains.index(site), options.data)


def _find_model(trials: Sequence[Trial], folder: Path, options: RunOptions, cut: Collection[str]) -> Path:
    """Return the folder of the selected model of a run, or of the greedy soup of several runs, which is made if needed.

    Runs that a time limit stopped before they had a model are left out; one that is left alone is not averaged.
    """
    runs = [folder / RUNS / trial.id for trial in trials if _has_model(trial, folder, cut)]
    first = trials[0]
    if not runs:
        raise _missing_model(first, folder / RUNS / first.id)
    if len(runs) < len(trials):
        out = ", ".join(first.dataset.domains[number] for number in first.test_domains)
        note(
            f"{first.label}, {f'held out {out}' if out else 'all sites'}: {len(runs)} of {len(trials)} runs give the "
            "model; the time limit stopped the others before they had one."
        )
    if len(runs) == 1:
        return runs[0]
    group = Group(first.label, tuple(read_member(read_run(run)) for run in runs))
    planned = plan_combinations([group], folder / SOUPS, [GREEDY])
    list(combine(planned, options.data, options.engine))
    return planned[0].folders[GREEDY]


def _has_model(trial: Trial, folder: Path, cut: Collection[str]) -> bool:
    """Return True for a run that is finished, or that a time limit stopped when it had a model."""
    run = folder / RUNS / trial.id
    if trial.id in cut:
        return (run / MODEL / DESCRIPTION).exists()
    if not (run / DONE).exists():
        raise InUseError(
            f"Expected a finished run in {run}; found one that another process still trains. Wait until it ends, "
            "then give the same command again."
        )
    return True


def _missing_model(trial: Trial, run: Path) -> UsageError:
    """Return the error for a run that a time limit stopped before it had a model."""
    last = Modifier.find_final(trial.modifiers)
    missing = (
        "an evaluation" if last is None else f"the end, where {type(trial.modifiers[last]).__name__} has its model,"
    )
    other = "" if last is None else ", or without this modifier"
    return UsageError(
        f"Expected {missing} of every run within the time limit; found none in {run}. Give the same command "
        f"again to continue, or begin again with another --out and more --minutes{other}."
    )


def choose_algorithm(results: Mapping[str, Sequence[SiteResult]]) -> tuple[str, dict[str, Forecast]]:
    """Return the algorithm with the highest mean accuracy, or R², at held-out sites, and the forecast of each.

    The first one of equals is chosen.
    """
    forecasts = {name: _forecast(sites) for name, sites in results.items()}
    return max(forecasts, key=lambda name: forecasts[name].mean), forecasts


def _forecast(sites: Sequence[SiteResult]) -> Forecast:
    """Return the forecast from all sites with a score; R² is undefined at sites whose targets are all equal.

    Raises:
        DataError: If there is no such site.
    """
    known = [site for site in sites if not math.isnan(site.accuracy)]
    if not known:
        raise DataError(
            "Expected a site with different targets, for the R² of the forecast; found equal targets only, at "
            f"{', '.join(site.site for site in sites)}. Correct the targets."
        )
    return forecast([site.accuracy for site in known], _task(known), [len(site.labels) for site in known])


def finish_model(
    plan: TrainingPlan,
    chosen: str,
    results: Mapping[str, Sequence[SiteResult]],
    forecasts: Mapping[str, Forecast],
    folder: Path,
    options: RunOptions,
    cut: Collection[str] = (),
) -> dict[str, Any]:
    """Write the model that was trained on all sites, with the forecast, its temperature, and a model card.

    Args:
        plan: All runs.
        chosen: Algorithm of the model.
        results: Predictions at held-out sites, by algorithm.
        forecasts: Forecast for a new site, by algorithm.
        folder: Folder of the model.
        options: Data folder, and the device that averages weights.
        cut: Ids of the trials that a time limit stopped before their last step.

    Returns:
        The description of the model.
    """
    final = plan.finals[chosen]
    source = _find_model(plan.members(final), folder, options, cut)
    model = load(source)
    sites = {found.site: _metrics(found, model.classes) for found in results[chosen]}
    extra: dict[str, Any] = {
        "forecast": _forecast_json(forecasts[chosen]),
        "compared": {name: _forecast_json(found) for name, found in forecasts.items()},
        "sites": {name: found.to_json() for name, found in sites.items()},
        **({"stopped_runs": len(cut)} if cut else {}),
        **({"soup": plan.soup} if plan.soup > 1 else {}),
    }
    if model.task == "classification":
        validation = predict_validation(model, final, options.data)
        temperature = fit_model_temperature(validation)
        extra["temperature"] = temperature
        extra["calibration"] = {
            found.site: scale_temperature(found.logits.numpy(), found.labels.numpy(), temperature).to_json()
            for found in results[chosen]
        }
    description = write_model(source, folder, extra)
    write_card(folder, description, sites, results[chosen], final, options.data)
    return description


def fit_model_temperature(validation: SiteResult) -> float:
    """Return the temperature of a model from its predictions of validation images.

    It is 1 (no scaling) if all of them are right: then every smaller temperature has a higher likelihood, and the
    smallest one would make all probabilities 0 or 1.
    """
    if bool((validation.logits.argmax(-1) == validation.labels).all()):
        return 1.0
    return fit_temperature(validation.logits.numpy(), validation.labels.numpy())


def _task(results: Sequence[SiteResult]) -> str:
    return "regression" if results[0].labels.is_floating_point() else "classification"


def _metrics(found: SiteResult, classes: Sequence[str]) -> ClassificationMetrics | RegressionMetrics:
    if found.labels.is_floating_point():
        return regression_metrics(found.logits.squeeze(-1).numpy(), found.labels.numpy())
    return classification_metrics(softmax(found.logits.numpy()), found.labels.numpy(), classes)


def _forecast_json(found: Forecast) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "accuracies": list(found.accuracies)}


def write_model(run: Path, folder: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the model of a run, or of an average of runs, into the folder of the model, with further facts.

    Returns:
        The description.
    """
    description = {**read_description(run / MODEL), **extra}
    name = description["weights"]["file"]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / name, (run / MODEL / name).read_bytes())
    write_atomic(folder / DESCRIPTION, readable_json(description))
    return description
