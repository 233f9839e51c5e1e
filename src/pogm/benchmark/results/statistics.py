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
    """Return mean, standard error and n of the values that are not NaN.

    The standard error is the population standard deviation divided by √n, as in DomainBed.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Mean(math.nan, None, 0)
    error = pstdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Mean(fmean(known), error, len(known))
