"""Mean and standard error, as tables, charts and measurements use them."""

import math
from collections.abc import Iterable
from statistics import fmean, pstdev
from typing import NamedTuple


class Mean(NamedTuple):
    """Mean of n values with its standard error."""

    value: float  # NaN if n = 0
    error: float | None  # None if n < 2: one value has no standard error
    n: int


def mean_of(values: Iterable[float]) -> Mean:
    """Return mean, standard error and n of the values that are finite.

    The standard error is the population standard deviation divided by √n, as in DomainBed.
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Mean(math.nan, None, 0)
    error = pstdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Mean(fmean(known), error, len(known))


def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, for a probability of at least 0.5.

    With θ = atan(t/√ν), P(|T| ≤ t) is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4), which increases with θ.

    Args:
        probability: P(T ≤ quantile), from 0.5 to below 1.
        freedom: Degrees of freedom ν, at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _two_sided(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _two_sided(angle: float, freedom: int) -> float:
    """Return P(|T| ≤ √ν tan(angle))."""
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for i in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
