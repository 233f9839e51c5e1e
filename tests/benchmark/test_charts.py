"""The charts are sound XML, honest about gaps, and inert whatever the names."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pogm.benchmark.charts import LIGHT, Point, Series, colour_style, line_chart, nice_ticks, standalone

SVG = "{http://www.w3.org/2000/svg}"
RISING = Series("ERM", tuple(Point(30 * i, 10.0 * i, 0.5, 3) for i in range(10)))


def parse(svg):
    return ElementTree.fromstring(svg)


def of_class(root, name):
    return [element for element in root.iter() if name in element.get("class", "").split()]


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
    ],
)
def test_ticks_are_the_numbers_one_would_write(low, high, ticks):
    assert nice_ticks(low, high) == ticks


def test_equal_values_still_have_an_axis():
    assert nice_ticks(5, 5)[0] < 5 < nice_ticks(5, 5)[-1]


def test_a_chart_says_what_it_shows_to_those_who_cannot_see_it():
    root = parse(line_chart([RISING], title="Held out: 0", y_label="accuracy, %"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Held out: 0: accuracy, % against step, ERM"


def test_every_point_tells_its_numbers_when_hovered():
    titles = [t.text for t in parse(line_chart([RISING], title="t")).iter(f"{SVG}title")]
    assert len(titles) == 10
    assert titles[1] == "ERM, step 30: 10 ± 0.5, n = 3"


def test_undefined_values_are_gaps_and_a_lone_point_is_still_drawn():
    points = (Point(0, 1.0), Point(1, 2.0), Point(2, math.nan), Point(3, 1.5))
    root = parse(line_chart([Series("a", points)], title="t"))
    (path,) = of_class(root, "line")
    first, lone = path.get("d").split("M")[1:]
    assert len(first.split()) == 2
    assert len(set(lone.split())) == 1
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").lower()


def test_a_band_is_drawn_only_where_there_is_a_spread():
    flat = Series("one trial", tuple(Point(i, i) for i in range(3)), colour=1)
    assert len(of_class(parse(line_chart([RISING, flat], title="t")), "band")) == 1


def test_everything_drawn_lies_inside_the_frame():
    root = parse(line_chart([RISING], title="t", width=340, height=250))
    numbers = re.findall(r"([\d.-]+),([\d.-]+)", of_class(root, "band")[0].get("d"))
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= 250 for x, y in numbers)


def test_no_data_is_an_empty_chart():
    assert of_class(parse(line_chart([], title="t")), "line") == []


def test_colours_come_again_with_dashes():
    seen = {(line.css, line.dash) for line in (Series("a", (), colour) for colour in range(3 * len(LIGHT)))}
    assert len(seen) == 3 * len(LIGHT)


def test_names_cannot_become_markup():
    hostile = Series('<script>alert("1")</script>\x00', (Point(0, 1.0),))
    chart = line_chart([hostile], title="</svg><script>", y_label="&", at=(0, 0))
    root = parse(standalone([chart], [hostile], title='"><script>', width=100, height=50))
    assert not list(root.iter(f"{SVG}script"))


def test_a_picture_of_its_own_brings_style_and_a_white_ground():
    svg = standalone([line_chart([RISING], title="t", at=(0, 40))], [RISING], title="t", width=400, height=300)
    root = parse(svg)
    assert root.find(f"{SVG}rect").get("fill") == "#fff"
    assert "var(" not in root.find(f"{SVG}style").text  # not every viewer of pictures knows variables
    assert "prefers-color-scheme: dark" in colour_style()
