"""Mean and standard error."""

import math

import pytest

from pogm.benchmark.results.statistics import mean_of


def test_mean_and_error_of_the_example_in_the_protocol():
    assert mean_of([70.0, 72.0, 74.0]) == pytest.approx((72.0, 0.9428, 3), abs=1e-4)


def test_nan_is_ignored_and_one_value_has_no_standard_error():
    assert mean_of([math.nan, 3.0]) == (3.0, None, 1)
    nothing = mean_of([math.nan])
    assert math.isnan(nothing.value)
    assert (nothing.error, nothing.n) == (None, 0)
