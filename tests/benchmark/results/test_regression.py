"""Metrics of a regression."""

import math

import pytest

from pogm.benchmark.results.regression import regression_metrics


@pytest.mark.parametrize("target", [0.0, 0.1, 1e6 + 0.1])
def test_r2_is_undefined_if_all_targets_are_equal(target):
    """The mean of three equal numbers may differ from them by rounding."""
    found = regression_metrics([target + 1, target + 2, target + 3], [target] * 3)
    assert math.isnan(found.r2)
    assert found.mae == pytest.approx(2)


def test_r2_compares_with_the_mean_of_the_targets():
    assert regression_metrics([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]).r2 == 0
    assert regression_metrics([1.0, 2.0, 2.0], [1.0, 2.0, 3.0]).r2 == pytest.approx(0.5)
