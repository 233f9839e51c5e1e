"""A mean with its standard error, as tables, charts and measurements all have it."""

import math
from collections.abc import Iterable
from statistics import fmean, pstdev
from typing import NamedTuple


class Mean(NamedTuple):
    """Of n values, the mean and its standard error."""

    value: float
    error: float
    n: int


def mean_of(values: Iterable[float]) -> Mean:
    """Of the values that are not NaN; the population deviation over √n, so that one value has an error of 0."""
    known = [value for value in values if not math.isnan(value)]
    return (
        Mean(fmean(known), pstdev(known) / math.sqrt(len(known)), len(known)) if known else Mean(math.nan, math.nan, 0)
    )
