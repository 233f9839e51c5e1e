"""Axes end at round numbers, and square ones have one unit."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pogm.report.axes import axes_of, nice_ticks, tick_text
from pogm.report.figure import Cloud, Line, Panel, Point


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_evenly_spaced_and_reach_over_the_data(low, width):
    high = low + width
    ticks = nice_ticks(low, high)
    slack = (ticks[1] - ticks[0]) * 1e-6
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    assert all(b > a for a, b in pairwise(ticks))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.31, 0.92, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 5000, [0, 1000, 2000, 3000, 4000, 5000]),
        (0, 3e-14, [0, 1e-14, 2e-14, 3e-14]),
    ],
)
def test_ticks_are_the_numbers_one_would_write(low, high, ticks):
    assert nice_ticks(low, high) == ticks


def test_equal_values_still_have_an_axis():
    assert nice_ticks(5, 5)[0] < 5 < nice_ticks(5, 5)[-1]


@pytest.mark.parametrize("value", [0.0025, 7.3, 1e9])
def test_values_that_differ_by_rounding_have_an_axis_with_different_ticks(value):
    ticks = nice_ticks(value, value * (1 + 4e-16))
    assert ticks[0] < value < ticks[-1]
    assert all(b > a for a, b in pairwise(ticks))


@pytest.mark.parametrize(
    ("tick", "text"), [(0.25, "0.25"), (-1.5, "−1.5"), (9000, "9000"), (25000, "25k"), (-20000, "−20k"), (2e-7, "2e−7")]
)
def test_ticks_are_written_short(tick, text):
    assert tick_text(tick) == text


def test_values_lie_in_the_frame_and_y_goes_up():
    axes = axes_of(Panel("t", (Line("a", (Point(0, 3.0), Point(7, 44.0, 2.0))),)), 340, 250)
    assert axes.left <= axes.x(0) < axes.x(7) <= axes.right
    assert axes.bottom >= axes.y(3) > axes.y(46) >= axes.top


@pytest.mark.parametrize("height", [None, 250, 500])
def test_one_unit_of_square_axes_is_as_long_across_as_up(height):
    axes = axes_of(Panel("t", (Cloud("a", (Point(-3, 0), Point(5, 1))),), square=True), 340, height)
    assert axes.x(1) - axes.x(0) == pytest.approx(axes.y(0) - axes.y(1))
    assert axes.left <= axes.x(-3) < axes.x(5) <= axes.right
    assert axes.top <= axes.y(1) < axes.y(0) <= axes.bottom
    assert all(axes.x_range[0] <= tick <= axes.x_range[1] for tick in axes.x_ticks)


def test_long_numbers_get_the_room_they_need():
    def left(top):
        return axes_of(Panel("t", (Line("a", (Point(0, 0), Point(1, top))),)), 340, 250).left

    assert left(0.00012) > left(100)
