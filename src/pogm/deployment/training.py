"""From finished runs to one model: predict held-out sites, choose an algorithm, write the model and its card."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import DataError, InUseError, UsageError
from pogm._system.files import readable_json, write_atomic
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
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL, read_description
from pogm.data.datasets.base import split_domain
from pogm.deployment.card import write_card
from pogm.deployment.forecast import Forecast, SiteResult, forecast
from pogm.deployment.model import TrainedModel, load
from pogm.deployment.predict import predict_stored
from pogm.deployment.training_plan import TrainingPlan
from pogm.modifiers.base import Modifier

RUNS = "runs"
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
            last = Modifier.find_final(trial.modifiers)
            missing = (
                "an evaluation"
                if last is None
                else f"the end, where {type(trial.modifiers[last]).__name__} has its model,"
            )
            other = "" if last is None else ", or without this modifier"
            raise UsageError(
                f"Expected {missing} of every run within the time limit; found none in {run}. Give the same command "
                f"again to continue, or begin again with another --out and more --minutes{other}."
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
    data: Path | None,
    cut: Collection[str] = (),
) -> int:
    """Write the model that was trained on all sites, with the forecast, its temperature, and a model card.

    Args:
        plan: All runs.
        chosen: Algorithm of the model.
        results: Predictions at held-out sites, by algorithm.
        forecasts: Forecast for a new site, by algorithm.
        folder: Folder of the model.
        data: Data folder.
        cut: Ids of the trials that a time limit stopped before their last step.

    Returns:
        The step of the model.
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
        temperature = fit_model_temperature(validation)
        extra["temperature"] = temperature
        extra["calibration"] = {
            found.site: scale_temperature(found.logits.numpy(), found.labels.numpy(), temperature).to_json()
            for found in results[chosen]
        }
    description = write_model(run, folder, extra)
    write_card(folder, description, sites, results[chosen], final, data)
    return int(description["selection"]["step"])


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
