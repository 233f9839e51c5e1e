"""The charts are sound XML, honest about gaps, and inert whatever the names."""

import math
import re
from xml.etree import ElementTree

import pytest

from pogm.report.charts import chart, legend, picture, swatch
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region
from pogm.report.style import LIGHT, colour_class, colour_style, dashes

SVG = "{http://www.w3.org/2000/svg}"
RISING = Line("ERM", tuple(Point(30 * i, 10.0 * i, 0.5, 3) for i in range(10)))
TRIANGLE = (Point(0, 0), Point(2, 0), Point(1, 1))


def parse(svg):
    return ElementTree.fromstring(svg)


def of_class(root, name):
    return [element for element in root.iter() if name in element.get("class", "").split()]


def drawn(*marks, **options):
    return parse(chart(Panel("t", marks, **options)))


def test_a_chart_says_what_it_shows_to_those_who_cannot_see_it():
    root = parse(chart(Panel("Held out: 0", (RISING,), y_label="accuracy, %")))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Held out: 0: accuracy, % against step, ERM"


def test_every_point_of_a_line_tells_its_numbers_when_hovered():
    titles = [t.text for t in drawn(RISING).iter(f"{SVG}title")]
    assert len(titles) == 10
    assert titles[1] == "ERM, step 30: 10 ± 0.5, n = 3"


def test_undefined_values_are_gaps_and_a_lone_point_is_still_drawn():
    points = (Point(0, 1.0), Point(1, 2.0), Point(2, math.nan), Point(3, 1.5))
    root = drawn(Line("a", points))
    (path,) = of_class(root, "line")
    first, lone = path.get("d").split("M")[1:]
    assert len(first.split()) == 2
    assert len(set(lone.split())) == 1
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").lower()


@pytest.mark.parametrize("mark", [Line, Cloud, Region, Label, Arrow])
def test_a_mark_that_is_nowhere_is_not_drawn(mark):
    root = drawn(mark("a", (Point(math.nan, 1.0), Point(0.0, math.inf))))
    assert not re.search("nan|inf", ElementTree.tostring(root, encoding="unicode"))
    assert not any(of_class(root, name) for name in ("line", "dots", "region", "note", "shaft"))


def test_a_band_is_drawn_only_where_there_is_a_spread():
    flat = Line("one trial", tuple(Point(i, i) for i in range(3)), colour=1)
    assert len(of_class(drawn(RISING, flat), "band")) == 1


def test_everything_drawn_lies_inside_the_frame():
    root = parse(chart(Panel("t", (RISING,)), width=340, height=250))
    numbers = re.findall(r"([\d.-]+),([\d.-]+)", of_class(root, "band")[0].get("d"))
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= 250 for x, y in numbers)


def test_no_data_is_an_empty_chart():
    assert of_class(drawn(), "line") == []


def test_a_cloud_is_a_dot_for_every_point():
    (path,) = of_class(drawn(Cloud("a", TRIANGLE)), "dots")
    assert path.get("d").count("M") == 3


def test_an_arrow_points_from_its_first_point_to_its_second():
    root = drawn(Arrow("a", (Point(0, 0), Point(1, 1))), square=True)
    (head,), (pin,) = of_class(root, "head"), of_class(root, "pin")
    assert head.get("transform") == "rotate(-45.0)"  # up and to the right, in a picture whose y goes down
    end = of_class(root, "shaft")[0].get("d").split()[-1]
    assert pin.get("transform") == f"translate({end.replace(',', ' ')})"


def test_a_region_is_closed_and_beneath_all_else():
    root = drawn(Arrow("a", TRIANGLE[:2]), Region("hull", TRIANGLE))
    (region,) = of_class(root, "region")
    assert region.get("d").endswith("Z")
    assert region.get("d").count(",") == 3
    order = [element.get("class") for element in root.iter() if element.get("class") in ("region", "shaft")]
    assert order == ["region", "shaft"]


def test_a_label_is_written_where_it_stands_and_not_in_the_legend():
    panel = Panel("t", (Label("here", (Point(0.5, 0.5),)), Region("hull", TRIANGLE)))
    (note,) = of_class(parse(chart(panel)), "note")
    assert note.text == "here"
    assert list(legend(Figure("f", "f", (panel,)))) == ["hull"]


def test_a_legend_names_everything_once_over_all_panels():
    panels = (Panel("a", (RISING, Cloud("dots", TRIANGLE))), Panel("b", (RISING, Line("", RISING.points))))
    assert list(legend(Figure("f", "f", panels))) == ["ERM", "dots"]


@pytest.mark.parametrize(("mark", "sample"), [(Line, "line"), (Cloud, "dots"), (Region, "region"), (Arrow, "head")])
def test_a_legend_shows_a_piece_of_the_mark(mark, sample):
    assert of_class(parse(swatch(mark("a", TRIANGLE))), sample)


def test_colours_come_again_with_dashes():
    seen = {(colour_class(mark), dashes(mark)) for mark in (Mark("a", (), colour) for colour in range(3 * len(LIGHT)))}
    assert len(seen) == 3 * len(LIGHT)


@pytest.mark.parametrize("mark", [Line, Cloud, Region, Label, Arrow])
def test_names_cannot_become_markup(mark):
    hostile = mark('<script>alert("1")</script>\x00', TRIANGLE)
    figure = Figure("f", '"><script>', (Panel("</svg><script>", (hostile,), y_label="&"),))
    root = parse(picture(figure, width=400, height=300))
    assert not list(root.iter(f"{SVG}script"))


def test_a_picture_of_its_own_brings_style_and_a_white_ground():
    root = parse(picture(Figure("f", "f", (Panel("t", (RISING,)),)), width=400, height=300))
    assert root.find(f"{SVG}rect").get("fill") == "#fff"
    assert "var(" not in root.find(f"{SVG}style").text  # not every viewer of pictures knows variables
    assert "prefers-color-scheme: dark" in colour_style()
