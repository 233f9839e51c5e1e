"""Mean, standard error and quantiles."""

import math

import pytest
from scipy.stats import t

from pogm.benchmark.results.statistics import mean_of, student_quantile


def test_mean_and_error_of_the_example_in_the_protocol():
    assert mean_of([70.0, 72.0, 74.0]) == pytest.approx((72.0, 0.9428, 3), abs=1e-4)


def test_nan_is_ignored_and_one_value_has_no_standard_error():
    assert mean_of([math.nan, 3.0]) == (3.0, None, 1)
    nothing = mean_of([math.nan])
    assert math.isnan(nothing.value)
    assert (nothing.error, nothing.n) == (None, 0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
@pytest.mark.parametrize("probability", [0.5, 0.8, 0.975, 0.9995])
def test_quantile_of_students_t_is_that_of_scipy(probability, freedom):
    assert student_quantile(probability, freedom) == pytest.approx(t.ppf(probability, freedom), rel=1e-9, abs=1e-12)
