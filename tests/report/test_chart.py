"""Specifications of figures, and their drawings: correct positions, gaps, bands, colours, and no markup from names."""

import csv
import io
import json
import math
import re
from xml.etree import ElementTree

import pytest

from pogm.report.chart import DARK, LIGHT, PALETTE, colour_of, dashes_of, specification, static_panels, with_colours
from pogm.report.draw import to_svg
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region, Row, x_extent, y_extent

SVG = "{http://www.w3.org/2000/svg}"
RISING = Line("ERM", tuple(Point(30 * i, 10.0 * i, 0.5, 3) for i in range(10)))
TRIANGLE = (Point(0, 0), Point(2, 0), Point(1, 1))


def panel_spec(*marks, **options):
    (panel,) = static_panels(specification(Figure("f", "f", (Panel("t", marks, **options),))))
    return panel


def draw(*marks, **options):
    return ElementTree.fromstring(to_svg(panel_spec(*marks, **options)))


def items(root, kind):
    """Return the drawn items of a kind of Vega mark: area, line, rule, symbol or text."""
    groups = [
        group for group in root.iter(f"{SVG}g") if {f"mark-{kind}", "role-mark"} <= set(group.get("class", "").split())
    ]
    return [item for group in groups for item in group if item.tag != f"{SVG}path" or item.get("d")]


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def position(item):
    return tuple(numbers(item.get("transform")))


def domains(spec):
    return spec["encoding"]["x"]["scale"]["domain"], spec["encoding"]["y"]["scale"]["domain"]


def test_description_names_panel_labels_and_marks():
    assert panel_spec(RISING, y_label="accuracy, %")["description"] == "t: accuracy, % against step, ERM"


def test_undefined_values_are_gaps_and_a_single_point_is_drawn_as_a_dot():
    points = (Point(0, 1.0), Point(1, 2.0), Point(2, math.nan), Point(3, 1.5))
    root = draw(Line("a", points))
    (path,) = items(root, "line")
    first, single = path.get("d").split("M")[1:]
    assert len(numbers(first)) == 4
    assert len(numbers(single)) == 2
    assert path.get("stroke-linecap") == "round"  # shows a line without length as a dot
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").lower()


@pytest.mark.parametrize("mark", [Line, Cloud, Region, Label, Arrow])
def test_marks_without_finite_points_are_not_drawn(mark):
    root = draw(mark("a", (Point(math.nan, 1.0), Point(0.0, math.inf))))
    assert not re.search("nan|inf|null", ElementTree.tostring(root, encoding="unicode").lower())
    assert not any(items(root, kind) for kind in ("line", "symbol", "rule", "text", "area"))


def test_bands_are_one_standard_error_to_each_side_and_only_for_several_values():
    single = Line("one trial", tuple(Point(i, i) for i in range(3)), colour=1)
    root = draw(RISING, single, y_range=(0, 100))
    (band,) = items(root, "area")
    assert band.get("fill") == "var(--s0)"
    height = panel_spec(RISING)["height"]
    ys = numbers(band.get("d"))[1::2]
    assert max(ys) - min(ys) == pytest.approx((90 + 2 * 0.5) / 100 * height, abs=0.2)


def test_a_point_without_standard_error_interrupts_the_band():
    points = tuple(Point(i, i, None if i == 2 else 0.5, 1 if i == 2 else 3) for i in range(5))
    (band,) = items(draw(Line("a", points)), "area")
    assert band.get("d").count("M") == 2


def test_a_panel_without_marks_is_empty():
    assert items(draw(), "line") == []


def test_a_cloud_has_a_dot_for_every_point_and_x_grid_lines():
    panel = panel_spec(Cloud("a", TRIANGLE))
    assert len(items(ElementTree.fromstring(to_svg(panel)), "symbol")) == 3
    assert panel["encoding"]["x"]["axis"]["grid"]
    assert not panel_spec(RISING)["encoding"]["x"]["axis"]["grid"]


def test_points_of_a_line_are_connected_in_their_order():
    (path,) = items(draw(Line("a", (Point(2, 0), Point(0, 1), Point(1, 0))), square=True), "line")
    xs = numbers(path.get("d"))[0::2]
    assert xs[1] < xs[2] < xs[0]


def test_lines_of_the_same_name_are_not_connected():
    assert len(items(draw(RISING, Line("ERM", ((Point(0, 50), Point(100, 20))))), "line")) == 2


def test_an_arrow_points_from_its_first_point_to_its_second():
    root = draw(Arrow("a", (Point(0, 0), Point(1, 1))), square=True)
    (shaft,), (head,) = items(root, "rule"), items(root, "symbol")
    x, y, angle = position(head)[:3]
    assert angle == pytest.approx(-45)  # up and to the right; the y axis of SVG goes down
    ends = [
        position(shaft)[:2],
        tuple(
            a + b for a, b in zip(position(shaft)[:2], (float(shaft.get("x2")), float(shaft.get("y2"))), strict=True)
        ),
    ]
    assert any(end == pytest.approx((x, y), abs=0.2) for end in ends)


def test_a_region_is_closed_and_below_other_marks():
    root = draw(Arrow("a", TRIANGLE[:2]), Region("hull", TRIANGLE, 2), square=True)
    (region,) = items(root, "line")
    assert region.get("d").endswith("Z")
    assert len(numbers(region.get("d"))) == 6
    assert (region.get("fill"), region.get("stroke")) == ("var(--s2)", "var(--s2)")
    order = [group.get("class").split()[0] for group in root.iter(f"{SVG}g") if "role-mark" in group.get("class", "")]
    assert order.index("mark-line") < order.index("mark-rule")


def test_a_label_is_written_at_its_point_and_not_in_the_legend():
    panel = Panel("t", (Label("here", (Point(0.5, 0.5),)), Region("hull", TRIANGLE)))
    (root,) = (
        ElementTree.fromstring(to_svg(spec)) for spec in static_panels(specification(Figure("f", "f", (panel,))))
    )
    assert {item.text for item in items(root, "text")} == {"here"}
    assert list(Figure("f", "f", (panel,)).legend()) == ["hull"]


def test_the_legend_has_every_name_of_all_panels_once():
    panels = (Panel("a", (RISING, Cloud("dots", TRIANGLE))), Panel("b", (RISING, Line("", RISING.points))))
    figure = Figure("f", "f", panels)
    assert list(figure.legend()) == ["ERM", "dots"]
    texts = [node.text for node in ElementTree.fromstring(to_svg(specification(figure))).iter(f"{SVG}text")]
    assert (texts.count("ERM"), texts.count("dots")) == (1, 1)


def test_panels_of_a_figure_have_their_own_colours():
    figure = Figure("f", "f", (Panel("a", (RISING,)), Panel("b", (Line("Fish", RISING.points, 1),))))
    root = ElementTree.fromstring(to_svg(specification(figure)))
    assert [item.get("stroke") for item in items(root, "line")] == ["var(--s0)", "var(--s1)"]


def test_colours_are_repeated_with_dashes():
    marks = [Mark("a", (), colour) for colour in range(3 * len(PALETTE))]
    assert len({(colour_of(mark), dashes_of(mark)) for mark in marks}) == 3 * len(PALETTE)
    plain, dashed = items(draw(RISING, Line("late", RISING.points, len(PALETTE))), "line")
    assert plain.get("stroke") == dashed.get("stroke")
    assert plain.get("stroke-dasharray") != dashed.get("stroke-dasharray")


@pytest.mark.parametrize("mark", [Line, Cloud, Region, Label, Arrow])
def test_names_do_not_become_markup(mark):
    hostile = mark('<script>alert("1")</script>\x00\ud800', TRIANGLE)
    figure = Figure("f", '"><script>', (Panel("</svg><script>", (hostile,), y_label="&"),))
    root = ElementTree.fromstring(to_svg(specification(figure)))
    assert not list(root.iter(f"{SVG}script"))


def test_files_contain_colours_and_no_variables():
    spec = with_colours(specification(Figure("f", "f", (Panel("t", (RISING,)),))), LIGHT)
    assert "var(" not in json.dumps(spec)
    assert with_colours({"title": "var(--other)"}, LIGHT) == {"title": "var(--other)"}
    assert LIGHT.keys() == DARK.keys()
    assert f'fill="{LIGHT["ground"]}"' in to_svg(spec)


@pytest.mark.parametrize("value", [5.0, 0.0025, 7.3, 1e9, 0.0])
def test_values_that_differ_by_rounding_only_have_an_axis_around_them(value):
    (low, high), _ = domains(panel_spec(Line("a", (Point(value, 1), Point(value * (1 + 4e-16), 2)))))
    assert low < value < high


def test_axes_span_the_given_range_or_all_points_with_their_bands():
    assert domains(panel_spec(RISING, y_range=(-1, 1)))[1] == (-1, 1)
    assert domains(panel_spec(RISING)) == ((0, 270), (-0.5, 90.5))
    assert y_extent([RISING]) == (-0.5, 90.5)
    assert x_extent([]) is None


@pytest.mark.parametrize("points", [((-3, 0), (5, 1)), ((0, 0), (1, 9)), ((0, 0), (1, 1))])
def test_units_of_square_axes_have_the_same_length(points):
    spec = panel_spec(Cloud("a", tuple(Point(*point) for point in points)), square=True)
    (left, right), (low, high) = domains(spec)
    assert (right - left) / spec["width"] == pytest.approx((high - low) / spec["height"], rel=0.01)
    assert all(left <= x <= right and low <= y <= high for x, y in points)


def test_long_names_of_rows_are_complete():
    """MeasurementPOGM was cut off in the report of the evidence."""
    names = "ERM", "MeasurementPOGM", "POGM, mean centre"
    rows = [Row(name, (Point(number, 1.0 + number, 0.1, 5),)) for number, name in enumerate(names)]
    assert panel_spec(*rows)["encoding"]["y"]["axis"]["labelLimit"] >= 8 * max(map(len, names))  # a wide font
    assert set(names) <= {item.text for item in draw(*rows).iter(f"{SVG}text")}


def test_given_ranges_with_equal_ends_have_an_axis_around_them():
    spec = panel_spec(Cloud("a", (Point(0.5, 0.5),)), x_range=(0.5, 0.5), y_range=(0.5, 0.5), square=True)
    assert all(low < 0.5 < high for low, high in domains(spec))


def test_csv_has_all_points_and_no_standard_error_of_a_single_value():
    figure = Figure("f", "f", (Panel("t", (Line("a", (Point(0, 1.0, 0.5, 3), Point(1, 2.0))),)),))
    assert list(csv.reader(io.StringIO(figure.csv()))) == [
        ["panel", "mark", "name", "x", "y", "stderr", "n"],
        ["t", "line", "a", "0", "1.0", "0.5", "3"],
        ["t", "line", "a", "1", "2.0", "", "1"],
    ]


def test_the_tooltip_of_a_line_has_every_visible_name():
    spec = specification(Figure("f", "f", (Panel("t", (RISING, Line("a.b[c]", RISING.points, 1)), "x.y [z]"),)))
    ElementTree.fromstring(to_svg(spec))  # special characters in names of fields are accepted
    (panel,) = spec["vconcat"][-1]["concat"]
    assert panel["layer"][-1]["transform"][-1] == {
        "pivot": "name",
        "value": "value",
        "groupby": [r"x\.y \[z\]"],
        "op": "max",
    }
