"""A mean and how far to trust it."""

import math

import pytest

from pogm.benchmark.results.statistics import mean_of


def test_the_protocols_example():
    assert mean_of([70.0, 72.0, 74.0]) == pytest.approx((72.0, 0.9428, 3), abs=1e-4)


def test_what_is_undefined_is_left_out_and_one_value_has_no_error():
    assert mean_of([math.nan, 3.0]) == (3.0, 0.0, 1)
    nothing = mean_of([math.nan])
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.error)
    assert nothing.n == 0
