"""Forecast of the accuracy at a new site, from the accuracies at sites that were held out one at a time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from torch import Tensor

from pogm.benchmark.results.regression import regression_metrics
from pogm.benchmark.results.statistics import student_quantile

LEVEL = 0.95
FEW_SITES = 5  # with fewer sites, the interval is wide


@dataclass(frozen=True)
class SiteResult:
    """Predictions of a model for one site."""

    site: str
    logits: Tensor  # [N, classes], or the predicted numbers [N, 1] of a regression
    labels: Tensor  # [N] class indices, or targets of a regression
    indices: Tensor | None = None  # [N] indices of the samples within the site; None if all are predicted

    @property
    def accuracy(self) -> float:
        """Share of samples that are classified correctly; for a regression, R²."""
        if self.labels.is_floating_point():
            return regression_metrics(self.logits.squeeze(-1).numpy(), self.labels.numpy()).r2
        return float((self.logits.argmax(-1) == self.labels).double().mean())


@dataclass(frozen=True)
class Forecast:
    """Accuracy, or R² of a regression, to expect at a new site.

    The interval is a prediction interval: it should contain the accuracy at *one* further site with probability 95 %,
    if that site is drawn like the others.

    Attributes:
        accuracies: Accuracy, or R², at each held-out site.
        mean: Mean over sites.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    accuracies: tuple[float, ...]
    mean: float
    low: float
    high: float
    task: str = "classification"

    def text(self) -> str:
        """Return the forecast in words, with a warning if it rests on few sites."""
        count = len(self.accuracies)
        name, form = ("R²", "{:.3f}") if self.task == "regression" else ("accuracy", "{:.1%}")
        mean, low, high = (form.format(value) for value in (self.mean, self.low, self.high))
        found = f"Expected {name} at a new site: {mean}, 95 % interval {low} to {high}"
        if count < 2:
            return f"{found}. One held-out site says nothing about the spread between sites."
        if count < FEW_SITES:
            return f"{found}. The interval is wide because it rests on {count} sites only."
        return f"{found}, from {count} sites."


def compare_best(forecasts: Mapping[str, Forecast]) -> str:
    """Return a sentence about the difference between the two algorithms with the highest means, paired by site."""
    best, second = sorted(forecasts, key=lambda name: -forecasts[name].mean)[:2]
    pairs = zip(forecasts[best].accuracies, forecasts[second].accuracies, strict=True)
    differences = [first - other for first, other in pairs]
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return f"{best} and {second} can be compared at one site only, which says nothing about their order."
    reach = student_quantile((1 + LEVEL) / 2, count - 1) * stdev(differences) / math.sqrt(count)
    scale, unit = (1, "in R²") if forecasts[best].task == "regression" else (100, "points")
    numbers = (
        f"{scale * mean:+.2f} {unit}, 95 % interval {scale * (mean - reach):+.2f} to {scale * (mean + reach):+.2f}"
    )
    end = (
        "The interval contains 0, so the runs do not show which one is better."
        if mean <= reach
        else "The interval is for one seed; other seeds can differ."
    )
    return f"{best} and {second}, paired by site: {numbers} ({count} sites, one seed). {end}"


def forecast(accuracies: Sequence[float], task: str = "classification", counts: Sequence[int] = ()) -> Forecast:
    """Return the forecast for a new site.

    With K sites of mean m and sample standard deviation s, the interval is m ± t s √(1 + 1/K), where t is the quantile
    of Student's distribution with K − 1 degrees of freedom. It is cut at 0 and 1; the R² of a regression has no lower
    limit. With one site it is [0, 1], or (−∞, 1].

    Few sites can have the same accuracy by chance. If the numbers of images are known, the interval is at least
    m ± z c √(1 + 1/K), where z is the quantile of the normal distribution and c = √(p (1 − p) / n) is the binomial
    standard deviation of the accuracy at a site. p is the share of correct images of all sites, with two correct
    and two wrong ones added, and n is the harmonic mean of the numbers of images.

    Args:
        accuracies: Accuracy, or R², at each held-out site; at least one.
        task: Task of the model.
        counts: Number of images of each held-out site, for a classification; empty if they are not known.
    """
    count, mean, least = len(accuracies), fmean(accuracies), -math.inf if task == "regression" else 0.0
    if count < 2:
        return Forecast(tuple(accuracies), mean, least, 1.0, task)
    spread = student_quantile((1 + LEVEL) / 2, count - 1) * stdev(accuracies)
    if counts and task == "classification":
        correct = sum(accuracy * images for accuracy, images in zip(accuracies, counts, strict=True))
        share = (correct + 2) / (sum(counts) + 4)
        chance = math.sqrt(share * (1 - share) * fmean(1 / images for images in counts))
        spread = max(spread, NormalDist().inv_cdf((1 + LEVEL) / 2) * chance)
    reach = spread * math.sqrt(1 + 1 / count)
    return Forecast(tuple(accuracies), mean, max(mean - reach, least), min(mean + reach, 1.0), task)
