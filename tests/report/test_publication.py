"""Figures for papers: what is drawn are the figure's numbers, and twice the same bytes."""

import builtins
import csv
import math
import re
from xml.etree import ElementTree

import matplotlib
import pytest

from pogm._system.errors import UsageError
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Panel, Point, Region
from pogm.report.publication import COLUMN, PAGE, drawing, write_figure
from pogm.report.style import LIGHT

RISING = Line("ERM", tuple(Point(30 * i, 0.1 * i, 0.05, 3) for i in range(10)))
DOTS = Cloud("pairs", (Point(0.1, 0.2), Point(0.3, 0.1)), 1)
STEP = Arrow("POGM", (Point(0.0, 0.0), Point(0.5, 0.25)), 3)
HULL = Region("hull", (Point(0, 0), Point(1, 0), Point(0, 1)), 13)
NOTE = Label("h₁ costs $5", (Point(0.5, 0.5),), 2)


def figure(*panels, name="toy"):
    return Figure(name, "A toy", tuple(panels))


def axes_of(*marks, **options):
    (axes,) = drawing(figure(Panel("t", marks, **options))).axes
    return axes


def names_in_legend(drawn):
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


def test_lines_dots_arrows_regions_and_labels_lie_at_their_points():
    axes = axes_of(RISING, DOTS, STEP, HULL, NOTE)
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert [[p.x, p.y] for p in RISING.points] in drawn
    assert [[p.x, p.y] for p in DOTS.points] in drawn
    (hull,) = axes.patches
    assert hull.get_xy()[:3].tolist() == [[0, 0], [1, 0], [0, 1]]
    arrow, label = (text for text in axes.texts if text.get_text() == "" or "costs" in text.get_text())
    assert (arrow.xyann, arrow.xy) == ((0.0, 0.0), (0.5, 0.25))
    assert label.get_position() == (0.5, 0.5)


def test_a_band_is_one_standard_error_to_each_side_and_only_where_there_is_one():
    (band,) = axes_of(RISING, Line("one trial", (Point(0, 1), Point(1, 2)))).collections
    outline = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices.tolist()}
    assert outline == {(p.x, round(p.y + side * p.spread, 9)) for p in RISING.points for side in (-1, 1)}


def test_undefined_values_are_gaps_and_a_lone_point_is_a_dot():
    points = (Point(0, 1.0), Point(1, 2.0), Point(2, math.nan), Point(3, 1.5))
    line, dot = axes_of(Line("a", points)).lines
    assert math.isnan(line.get_ydata()[2])
    assert dot.get_xydata().tolist() == [[3, 1.5]]


def test_colours_are_the_pages_and_come_again_with_dashes():
    first, again = axes_of(RISING, Line("late", RISING.points, len(LIGHT))).lines
    assert first.get_color() == again.get_color() == LIGHT[0]
    assert not first.is_dashed()
    assert again.is_dashed()


def test_the_axes_span_the_given_range_or_all_that_is_drawn():
    assert axes_of(RISING, y_range=(-1, 1)).get_ylim() == (-1, 1)
    low, high = axes_of(RISING, STEP).get_ylim()
    assert low < -0.05
    assert high > 0.95


def test_a_unit_is_as_long_on_both_axes_where_it_should_be():
    assert axes_of(STEP, square=True).get_aspect() == 1
    assert axes_of(STEP).get_aspect() == "auto"


def test_panels_share_one_legend_with_every_name_once_in_the_order_of_the_palette():
    drawn = drawing(figure(Panel("a", (HULL, STEP, NOTE)), Panel("b", (STEP, RISING))))
    assert names_in_legend(drawn) == ["ERM", "POGM", "hull"]


def test_a_figure_is_as_wide_as_a_column_or_the_page():
    widths = [drawing(figure(*[Panel("t", (RISING,))] * count)).get_figwidth() for count in (1, 2, 3, 5)]
    assert widths == [COLUMN, COLUMN, PAGE, PAGE]


def test_panels_are_lettered_where_there_are_several():
    drawn = drawing(figure(*(Panel(title, (RISING,)) for title in ("one", "two"))))
    assert [axes.get_title() for axes in drawn.axes] == ["(a) one", "(b) two"]


def test_a_dollar_is_a_dollar_and_an_index_an_index():
    (label,) = axes_of(NOTE).texts
    assert label.get_text() == r"h$_{1}$ costs \$5"


@pytest.mark.parametrize("name", ["$x$ and $", "\\frac{", "中文", "a_b^c", "\x00<&>", "h₀⁺"])
def test_any_name_can_be_drawn(tmp_path, name):
    panel = Panel(name, (Line(name, RISING.points), Label(name, (Point(0, 0),))), name, name)
    for path in write_figure(Figure("toy", name, (panel,)), tmp_path):
        assert path.stat().st_size > 0


def test_no_panels_and_no_points_are_an_empty_drawing(tmp_path):
    for empty in (figure(), figure(Panel("nothing", ())), figure(Panel("none", (Line("a", ()),)))):
        assert write_figure(empty, tmp_path)


def test_the_files_are_vector_drawings_with_their_fonts_and_the_numbers_beside_them(tmp_path):
    pdf, svg, table = write_figure(figure(Panel("t", (RISING, NOTE))), tmp_path / "new")
    assert [path.name for path in (pdf, svg, table)] == ["toy.pdf", "toy.svg", "toy.csv"]
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert b"/Type0" in content, "the fonts are embedded as TrueType"
    assert b"/Subtype /Image" not in content, "no picture made of dots"
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert not list(ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")), "letters are outlines"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(float(row["x"]), float(row["y"])) for row in rows[:10]] == [(p.x, p.y) for p in RISING.points]


def test_the_same_figure_is_the_same_bytes_and_carries_no_date(tmp_path):
    shown = figure(Panel("t", (RISING, DOTS, STEP, HULL, NOTE), square=True))
    first, again = (write_figure(shown, tmp_path / name) for name in ("first", "again"))
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"Date" not in first[0].read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()


def test_the_readers_own_settings_neither_change_it_nor_are_changed(tmp_path):
    shown = figure(Panel("t", (RISING,)))
    plain = [path.read_bytes() for path in write_figure(shown, tmp_path / "plain")]
    with matplotlib.rc_context({"lines.linewidth": 17.0, "font.size": 30.0}):
        mine = dict(matplotlib.rcParams)
        assert [path.read_bytes() for path in write_figure(shown, tmp_path / "mine")] == plain
        assert dict(matplotlib.rcParams) == mine


def test_an_unknown_format_names_those_that_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"pdf, png, svg; found 'jpg'"):
        write_figure(figure(Panel("t", (RISING,))), tmp_path, ("jpg",))


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    find = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return find(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=re.escape("pip install 'pogm[figures]'")):
        write_figure(figure(Panel("t", (RISING,))), tmp_path)
    assert not list(tmp_path.glob("toy.*"))
