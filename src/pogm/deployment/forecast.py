"""Forecast of the accuracy at a new site, from the accuracies at sites that were held out one at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from torch import Tensor

from pogm.benchmark.results.statistics import student_quantile

LEVEL = 0.95
FEW_SITES = 5  # with fewer sites, the interval is wide


@dataclass(frozen=True)
class SiteResult:
    """Predictions of a model for one site."""

    site: str
    logits: Tensor  # [N, classes]
    labels: Tensor  # [N]

    @property
    def accuracy(self) -> float:
        """Share of images that are classified correctly."""
        return float((self.logits.argmax(-1) == self.labels).double().mean())


@dataclass(frozen=True)
class Forecast:
    """Accuracy to expect at a new site.

    The interval is a prediction interval: it should contain the accuracy at *one* further site with probability 95 %,
    if that site is drawn like the others.

    Attributes:
        accuracies: Accuracy at each held-out site.
        mean: Mean over sites.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    accuracies: tuple[float, ...]
    mean: float
    low: float
    high: float

    def text(self) -> str:
        """Return the forecast in words, with a warning if it rests on few sites."""
        count = len(self.accuracies)
        found = f"Expected accuracy at a new site: {self.mean:.1%}, 95 % interval {self.low:.1%} to {self.high:.1%}"
        if count < 2:
            return f"{found}. One held-out site says nothing about the spread between sites."
        if count < FEW_SITES:
            return f"{found}. The interval is wide because it rests on {count} sites only."
        return f"{found}, from {count} sites."


def forecast(accuracies: Sequence[float]) -> Forecast:
    """Return the forecast for a new site.

    With K sites of mean m and sample standard deviation s, the interval is m ± t s √(1 + 1/K), where t is the quantile
    of Student's distribution with K − 1 degrees of freedom. It is cut at 0 and 1. With one site it is [0, 1].

    Args:
        accuracies: Accuracy at each held-out site; at least one.
    """
    count, mean = len(accuracies), fmean(accuracies)
    if count < 2:
        return Forecast(tuple(accuracies), mean, 0.0, 1.0)
    reach = student_quantile((1 + LEVEL) / 2, count - 1) * stdev(accuracies) * math.sqrt(1 + 1 / count)
    return Forecast(tuple(accuracies), mean, max(mean - reach, 0.0), min(mean + reach, 1.0))
