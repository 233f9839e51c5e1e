"""Metrics of a regression, and their table."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pogm._system.errors import UsageError
from pogm.benchmark.results.table import Column, Row, Table


class RegressionMetrics(NamedTuple):
    r"""Metrics of predicted numbers. RMSE and MAE are in the unit of the targets.

    .. math:: R^2 = 1 - \frac{\sum_i (\hat y_i - y_i)^2}{\sum_i (y_i - \bar y)^2}
    """

    n: int  # number of samples
    r2: float  # 1 is perfect, 0 is as good as the mean of these targets; NaN if all targets are equal
    rmse: float  # root mean squared error
    mae: float  # mean absolute error

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; an undefined R² is None."""
        return self._asdict() | {"r2": self.r2 if math.isfinite(self.r2) else None}


def regression_metrics(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> RegressionMetrics:
    """Return the metrics of predictions [N] of targets [N].

    Raises:
        UsageError: The shapes differ, there are no samples, or a number is not finite.
    """
    p, y = np.asarray(predictions, np.float64), np.asarray(targets, np.float64)
    if p.ndim != 1 or p.shape != y.shape or not p.size:
        raise UsageError(
            f"Expected predictions and targets of one shape [N]; found {list(p.shape)} and {list(y.shape)}. Give one "
            "number for each sample."
        )
    if not (np.isfinite(p).all() and np.isfinite(y).all()):
        raise UsageError("Expected finite predictions and targets; found NaN or infinity. Remove these samples.")
    error = p - y
    different = bool((y != y[0]).any())  # the variance of equal targets may be above 0, because their mean is rounded
    r2 = 1 - np.square(error).sum() / np.square(y - y.mean()).sum() if different else math.nan
    return RegressionMetrics(len(y), float(r2), float(np.sqrt(np.square(error).mean())), float(np.abs(error).mean()))


def regression_table(sites: Mapping[str, RegressionMetrics], title: str = "Metrics by site") -> Table:
    """Return one row for each site: number of samples, R², RMSE and MAE."""
    columns = (
        Column("samples", kind="number"),
        Column("r2", "R²", kind="number", digits=".3f", missing="-"),
        Column("rmse", "RMSE", kind="number", digits=".4g"),
        Column("mae", "MAE", kind="number", digits=".4g"),
    )
    rows = tuple(Row(tuple(found), key=name) for name, found in sites.items())
    note = "RMSE and MAE are in the unit of the targets. R² is 0 for the mean of the targets of the site."
    if any(math.isnan(found.r2) for found in sites.values()):
        note += " It is undefined (-) where all targets are equal."
    return Table(title, columns, rows, footnotes=(note,), row_key="site")
