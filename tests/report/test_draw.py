"""Figures for papers: sizes, fonts, reproducible bytes, and errors."""

import csv
import re
import sys
from xml.etree import ElementTree

import pytest

from pogm._system.errors import UsageError
from pogm.report.draw import COLUMN, PAGE, MissingPackageError, javascript, paper_specification, write_figure, write_svg
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Panel, Point, Region
from pogm.report.page import Section, _environment, render, write_page

RISING = Line("ERM", tuple(Point(30 * i, 0.1 * i, 0.05, 3) for i in range(10)))
DOTS = Cloud("pairs", (Point(0.1, 0.2), Point(0.3, 0.1)), 1)
STEP = Arrow("POGM", (Point(0.0, 0.0), Point(0.5, 0.25)), 3)
HULL = Region("hull", (Point(0, 0), Point(1, 0), Point(0, 1)), 13)
NOTE = Label("h₁ costs $5", (Point(0.5, 0.5),), 2)


def figure(*panels, name="toy"):
    return Figure(name, "A toy", tuple(panels))


def page_size(pdf):
    """Return the width and the height of a PDF page in points."""
    return [float(n) for n in re.search(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf.read_bytes()).groups()]


@pytest.mark.parametrize(("count", "width"), [(1, COLUMN), (2, COLUMN), (3, PAGE), (5, PAGE)])
def test_a_figure_is_as_wide_as_a_column_or_the_page(tmp_path, count, width):
    pdf, *_ = write_figure(figure(*[Panel("t", (RISING,))] * count), tmp_path, ("pdf",))
    assert page_size(pdf)[0] == pytest.approx(0.75 * width, abs=15)


def test_several_panels_have_letters():
    spec = paper_specification(figure(*(Panel(title, (RISING,)) for title in ("one", "two"))))
    assert [panel["title"]["text"] for panel in spec["vconcat"][-1]["concat"]] == ["(a) one", "(b) two"]


@pytest.mark.parametrize("name", ["$x$ and $", "\\frac{", "中文", "a_b^c", "\x00<&>", "h₀⁺", "a.b[c]'\"", "\ud800"])
def test_every_name_can_be_drawn(tmp_path, name):
    panel = Panel(name, (Line(name, RISING.points), Label(name, (Point(0, 0),))), name, name)
    for path in write_figure(Figure("toy", name, (panel,)), tmp_path):
        assert path.stat().st_size > 0


def test_figures_without_panels_or_points_are_empty_drawings(tmp_path):
    for empty in (figure(), figure(Panel("nothing", ())), figure(Panel("none", (Line("a", ()),)))):
        assert write_figure(empty, tmp_path)


def test_files_are_vector_drawings_with_fonts_and_the_numbers_as_csv(tmp_path):
    pdf, svg, table = write_figure(figure(Panel("t", (RISING, NOTE))), tmp_path / "new")
    assert [path.name for path in (pdf, svg, table)] == ["toy.pdf", "toy.svg", "toy.csv"]
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert b"/FontFile" in content, "the fonts are embedded"
    assert b"/Subtype /Image" not in content, "no bitmap"
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(float(row["x"]), float(row["y"])) for row in rows[:10]] == [(p.x, p.y) for p in RISING.points]


def test_png_has_300_pixels_per_inch(tmp_path):
    png, _ = write_figure(figure(Panel("t", (RISING,))), tmp_path, ("png",))
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == pytest.approx(300 * COLUMN / 96, rel=0.05)


def test_the_same_figure_gives_the_same_bytes_without_a_date(tmp_path):
    whole = figure(Panel("t", (RISING, DOTS, STEP, HULL, NOTE), square=True))
    first, second = (write_figure(whole, tmp_path / name, ("pdf", "svg", "png")) for name in ("first", "second"))
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one.read_bytes() == other.read_bytes()
    pdf, again = first[0].read_bytes(), second[0].read_bytes()
    assert len(pdf) == pytest.approx(len(again), abs=20)  # vl-convert writes the fonts of a PDF in any order
    assert b"Date" not in pdf


def test_one_svg_file_has_all_panels_in_a_row(tmp_path):
    path = write_svg(figure(Panel("one", (RISING,)), Panel("two", (RISING,))), tmp_path / "new" / "f.svg")
    root = ElementTree.parse(path).getroot()
    assert float(root.get("width")) == pytest.approx(960, abs=20)
    assert {"one", "two", "ERM"} <= set(root.itertext())


def test_labels_of_an_axis_with_small_numbers_keep_their_digits(tmp_path):
    line = Line("ERM", tuple(Point(i, 0.002 * i) for i in range(8)))
    path = write_svg(figure(Panel("one", (line,))), tmp_path / "f.svg")
    assert {"0.004", "0.012"} <= set(ElementTree.parse(path).getroot().itertext())
    assert not re.search(r' d="[^"]*\d\.\d{3}', path.read_text()), "coordinates are of a tenth of a pixel"


def test_an_unknown_format_is_an_error_that_lists_the_formats(tmp_path):
    with pytest.raises(UsageError, match=r"pdf, png, svg; found 'jpg'"):
        write_figure(figure(Panel("t", (RISING,))), tmp_path, ("jpg",))


def test_the_script_of_pages_contains_the_interpreter_of_expressions():
    assert "vegaEmbed" in javascript()
    assert not re.search("</script|<!--", javascript(), re.IGNORECASE)


@pytest.mark.parametrize("module", ["vl_convert", "jinja2", "markupsafe"])
def test_without_a_package_the_error_says_what_to_install_and_nothing_is_written(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    _environment.cache_clear()
    package = {"vl_convert": "vl-convert-python"}.get(module, "jinja2")
    message = rf"Expected the package {package}.*; found that it is not installed\. Install it: pip install {package}"
    content = figure(Panel("t", (RISING,)))
    with pytest.raises(MissingPackageError, match=message):
        write_page(tmp_path / "new" / "page.html", render("Title", [Section("S", (content,))]))
    if module == "vl_convert":
        with pytest.raises(MissingPackageError, match=message):
            write_figure(content, tmp_path)
    assert list(tmp_path.iterdir()) == []
