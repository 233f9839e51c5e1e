"""The report in a real browser: opened, hovered, zoomed, sorted, saved; on a phone and in the dark."""

import csv
import io
import math
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import pytest
from run_folders import record, text_table, write_run, write_sweep

from pogm.benchmark.results.accuracy_tables import dataset_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Panel, Point, Region
from pogm.report.markup import Html
from pogm.report.page import Section, render, write_page
from pogm.report.runs import figures_of, write_report

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
DATASET = f"Digits {HOSTILE}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three algorithms, one of them with a name that would do harm, and a run that failed."""
    folder = tmp_path_factory.mktemp("runs")
    labels = ("ERM", "Fish", HOSTILE)
    write_sweep(folder, labels, dataset=DATASET, domains=("A", f"B{HOSTILE}", "C"), seeds=2)
    names = {"dataset": DATASET, "domains": ("A", f"B{HOSTILE}", "C")}
    write_run(folder, [record(0, [0.9] * 3, [0.9] * 3)], label="Late", done=False, failure=HOSTILE, **names)
    return read_runs(folder)


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    return write_report(runs, tmp_path_factory.mktemp("report") / "report.html", command=HOSTILE, title=HOSTILE)


GEOMETRY = Figure(
    "geometry",
    "Shapes",
    (
        Panel("Dots", (Cloud("dots", tuple(Point(i, math.sin(i)) for i in range(40))),), "across", "up"),
        Panel(
            "Arrows",
            (
                Region("hull", (Point(0, 0), Point(2, 0), Point(1, 1)), colour=2),
                Arrow("step", (Point(0, 0), Point(1, 1)), colour=1),
                Label("here", (Point(1.5, 0.5),)),
            ),
            "w₁",
            "w₂",
            square=True,
        ),
    ),
)


class Window:
    """A window of the browser, which notes what its pages say and ask for."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.said, self.asked, self.own = [], [], []
        self.page.set_default_timeout(5000)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, place):
        self.own.append(place if isinstance(place, str) else place.as_uri())
        self.page.goto(self.own[-1])
        return self.page

    def check(self):
        assert self.said == []
        assert [url for url in self.asked if url not in self.own and not url.startswith("blob:")] == []


@pytest.fixture(scope="module")
def usual(browser):
    window = Window(browser)
    yield window
    window.context.close()


@pytest.fixture
def page_at(browser, usual):
    """Open a page; afterwards it must have said nothing and asked for nothing but itself."""
    windows = []

    def opened(place, **options):
        windows.append(Window(browser, **options) if options else usual)
        return windows[-1].open(place)

    yield opened
    for window in windows:
        window.check()
        if window is not usual:
            window.context.close()


def drag(page, chart, start, end):
    """Across a chart, from one share of its width and height to another."""
    box = chart.bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=3)
    page.mouse.up()


def saved(page, button):
    with page.expect_download() as download:
        button.click()
    return download.value.path().read_text(encoding="utf-8"), download.value.suggested_filename


def tick_texts(chart):
    return chart.locator(".tick").all_text_contents()


def numbers(texts):
    """The means in some cells; what is missing is None."""
    found = [re.match(r"[-−+]?[\d.]+", text) for text in texts]
    return [float(match[0].replace("−", "-")) if match else None for match in found]


def test_a_head_sorts_both_ways_then_restores_with_what_is_missing_last(page_at, report):
    page = page_at(report)
    table = page.locator("figure.table").first
    head, column = table.locator("thead th").nth(1), table.locator("tbody td:nth-child(2)")
    before = column.all_text_contents()
    assert None in numbers(before)  # the run that failed
    seen = []
    for _ in range(3):
        head.get_by_role("button").click()
        seen.append((head.get_attribute("aria-sort"), column.all_text_contents()))
    (first, down), (second, up), (third, restored) = seen
    assert (first, second, third) == ("descending", "ascending", "none")
    known = [value for value in numbers(before) if value is not None]
    assert numbers(down) == [*sorted(known, reverse=True), None]
    assert numbers(up) == [*sorted(known), None]
    assert restored == before


def test_numbers_sort_as_numbers_whatever_follows_them(page_at, tmp_path):
    values = ("9.4 ± 20.1", "12.5 ± 0.1", "−3.0 †", "–", "1e-3", "", "X failed", "+0.2")
    listing = text_table("Rows", ("Name", "Number"), tuple((f"row {i}", value) for i, value in enumerate(values)))
    page = page_at(write_page(tmp_path / "page.html", "Numbers", [Section("S", (listing,))]))
    for _ in range(2):
        page.get_by_role("button", name="Number").click()
    wanted = ["−3.0 †", "1e-3", "+0.2", "9.4 ± 20.1", "12.5 ± 0.1", "–", "", "X failed"]
    assert page.locator("tbody td").all_text_contents() == wanted


def test_tables_sort_by_keyboard(page_at, report):
    page = page_at(report)
    head = page.locator("figure.table thead th").first
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"


def test_hovering_tells_the_values_of_all_lines(page_at, report, runs):
    page = page_at(report)
    chart = page.locator(".panel > .chart").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + box["height"] / 2)
    assert page.locator(".panel .says").first.is_visible()
    says = page.locator(".panel .says").first.inner_text()
    lines = figures_of(runs, DATASET)[0].panels[0].marks
    assert "step 299" in says
    for line in lines:
        assert line.name in says
        assert f"{line.points[-1].y:.4g}" in says
    page.mouse.move(0, 0)
    assert not page.locator(".panel .says").first.is_visible()


def test_a_finger_reads_values_too(page_at, report):
    page = page_at(report, has_touch=True, viewport={"width": 375, "height": 700})
    chart = page.locator(".panel > .chart").first
    chart.scroll_into_view_if_needed()
    chart.tap()
    says = page.locator(".panel .says").first
    assert says.is_visible()
    assert "step" in says.inner_text()
    box = says.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375
    page.locator("h1").tap()
    assert not says.is_visible()


def test_keys_walk_along_the_lines_and_zoom(page_at, report):
    page = page_at(report)
    chart = page.locator(".panel > .chart").first
    whole = tick_texts(chart)
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        chart.press(key)
    assert "step 30" in page.locator(".panel .says").first.inner_text()
    chart.press("+")
    assert tick_texts(chart) != whole
    chart.press("-")
    chart.press("-")
    assert tick_texts(chart) == whole


@pytest.mark.parametrize("back", ["double click", "button", "Escape"])
def test_zooming_changes_the_axes_and_resetting_restores_them(page_at, report, back):
    page = page_at(report)
    figure = page.locator("figure.figure").first
    chart = figure.locator(".panel > .chart").first
    chart.scroll_into_view_if_needed()
    whole, frame = tick_texts(chart), chart.locator(".plot").get_attribute("viewBox")
    drag(page, chart, (0.5, 0.4), (0.8, 0.5))
    zoomed = numbers(tick_texts(chart))
    steps = zoomed[-len([tick for tick in zoomed if tick >= 100]) :]
    assert tick_texts(chart) != whole
    assert chart.locator(".plot").get_attribute("viewBox") != frame
    assert min(steps) > 100  # the left of what was dragged over
    assert max(steps) < 270
    if back == "double click":
        chart.dblclick()
    elif back == "button":
        figure.get_by_role("button", name="Reset zoom").click()
    else:
        chart.press("Escape")
    assert tick_texts(chart) == whole
    assert chart.locator(".plot").get_attribute("viewBox") == frame
    assert not figure.get_by_role("button", name="Reset zoom").is_visible()


def test_a_wheel_zooms_when_the_control_key_is_held(page_at, report):
    page = page_at(report)
    chart = page.locator(".panel > .chart").first
    chart.hover()
    whole = tick_texts(chart)
    page.mouse.wheel(0, -40)
    assert tick_texts(chart) == whole  # the page scrolls, as pages do
    chart.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("whole => document.querySelector('.axes').textContent !== whole", arg="".join(whole))


def test_where_a_zoomed_line_lies_is_what_the_axis_says(page_at, report, runs):
    """The last value, read off the axis by the ticks beside it, is the value."""
    page = page_at(report)
    chart = page.locator(".panel > .chart").first
    chart.scroll_into_view_if_needed()
    drag(page, chart, (0.6, 0.4), (0.999, 0.5))
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + box["height"] / 2)
    spots = chart.locator(".spot").evaluate_all("nodes => nodes.map(node => Number(node.getAttribute('cy')))")
    ticks = chart.locator(".tick.end").evaluate_all(
        "nodes => nodes.map(node => [Number(node.getAttribute('y')) - 3.5, Number(node.textContent)])"
    )
    (y0, value0), (y1, value1) = ticks[0], ticks[-1]
    read = sorted(value0 + (y - y0) / (y1 - y0) * (value1 - value0) for y in spots)
    lines = figures_of(runs, DATASET)[0].panels[0].marks
    assert read == pytest.approx(sorted(line.points[-1].y for line in lines), abs=1e-6)
    ends = chart.locator(".line").evaluate_all(  # where the browser drew them
        """nodes => nodes.map(node => {
            const end = node.getPointAtLength(node.getTotalLength()), at = end.matrixTransform(node.getScreenCTM());
            const box = node.closest('.panel').getBoundingClientRect();
            return (at.y - box.top) / box.width * 340;
        })"""
    )
    assert sorted(ends) == pytest.approx(sorted(spots), abs=1.0)


def test_legend_entries_hide_and_show_their_lines(page_at, report):
    page = page_at(report)
    figure = page.locator("figure.figure").first
    entry, line = figure.locator(".legend button").nth(1), figure.locator('.plot [data-key="1"] .line').first
    assert (entry.get_attribute("aria-pressed"), line.is_visible()) == ("true", True)
    entry.click()
    assert (entry.get_attribute("aria-pressed"), line.is_visible()) == ("false", False)
    entry.click()
    assert line.is_visible()


def test_the_numbers_of_a_chart_can_be_taken_away(page_at, report, runs):
    page = page_at(report)
    figure = figures_of(runs, DATASET)[0]
    text, name = saved(page, page.locator("figure.figure").first.get_by_role("button", name="CSV"))
    assert name == f"{figure.name}.csv"
    head, *rows = csv.reader(io.StringIO(text))
    own_head, *own = csv.reader(io.StringIO(figure.csv()))
    assert head == own_head
    assert [row[:3] for row in rows] == [row[:3] for row in own]
    assert [list(map(float, row[3:])) for row in rows] == [list(map(float, row[3:])) for row in own]


def test_the_numbers_of_a_table_can_be_taken_away(page_at, report, runs):
    page = page_at(report)
    text, _ = saved(page, page.locator("figure.table").first.get_by_role("button", name="CSV"))
    assert text == dataset_table(runs, DATASET, TRAINING_DOMAIN).csv()


def test_a_list_can_be_taken_away(page_at, report, runs):
    page = page_at(report)
    page.locator("details").last.locator("summary").click()
    text, _ = saved(page, page.locator("details").last.get_by_role("button", name="CSV"))
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + len(runs)


def test_a_chart_can_be_taken_away_as_it_is(page_at, report):
    page = page_at(report)
    figure = page.locator("figure.figure").first
    hidden, kept, *_ = figure.locator(".legend li").all_text_contents()
    figure.locator(".legend button").first.click()
    text, name = saved(page, figure.get_by_role("button", name="SVG"))
    root = ElementTree.fromstring(text)
    assert name.endswith(".svg")
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert hidden not in texts
    assert kept in texts
    assert "var(" not in text
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_dots_and_arrows_are_read_off_and_zoomed_in_both_directions(page_at, tmp_path):
    page = page_at(write_page(tmp_path / "page.html", "Shapes", [Section("Shapes", (GEOMETRY,))]))
    dots, arrows = page.locator(".panel > .chart").all()
    whole = tick_texts(dots), tick_texts(arrows)
    drag(page, dots, (0.3, 0.3), (0.6, 0.5))
    drag(page, arrows, (0.3, 0.3), (0.6, 0.5))
    assert tick_texts(dots) != whole[0]
    assert tick_texts(arrows) != whole[1]
    ratio = "node => node.viewBox.baseVal.width / node.viewBox.baseVal.height"
    frame = "node => Number(node.getAttribute('width')) / Number(node.getAttribute('height'))"
    plot = arrows.locator(".plot")
    assert plot.evaluate(ratio) == pytest.approx(plot.evaluate(frame))  # one unit is as long on both axes
    dots.dblclick()
    x, y = dots.evaluate(  # the first dot, where the browser drew it
        """chart => {
            const [x, y] = chart.querySelector('.dots').getAttribute('d').match(/[\\d.]+/g).map(Number);
            const box = chart.getBoundingClientRect(), scale = box.width / chart.viewBox.baseVal.width;
            return [box.x + x * scale, box.y + y * scale];
        }"""
    )
    page.mouse.move(x + 2, y + 2)
    assert page.locator(".says").first.inner_text() == "dots\nacross 0, up 0"


def test_names_stay_names(page_at, report):
    page = page_at(report)
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    page.locator("details summary").first.click()


def test_a_phone_needs_no_sideways_scrolling(page_at, report):
    page = page_at(report, viewport={"width": 375, "height": 812})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for part in page.locator("details summary").all():
        part.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_dark_is_dark(page_at, report):
    grounds = [
        page_at(report, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    light, dark = (sum(map(int, re.findall(r"\d+", ground)[:3])) for ground in grounds)
    assert light > 600
    assert dark < 150


def test_paper_is_white_even_in_the_dark_and_shows_no_buttons(page_at, report):
    page = page_at(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.get_by_role("button", name="CSV").first.is_visible()


def test_a_live_page_grows_and_keeps_what_the_reader_did(page_at, monkeypatch):
    monkeypatch.setattr("pogm.report.page.SECONDS", 0.1)
    lines = [Line(name, tuple(Point(i, i * (place + 1)) for i in range(9)), place) for place, name in enumerate("ab")]
    figure = Figure("curves", "Curves", (Panel("One", tuple(lines)),))
    listing = text_table("Rows", ("Name", "Number"), (("x", 1), ("y", 2)))
    shown = [
        render("Live", [Section("S", (Html(f"<p>{count} runs</p>"), figure, listing))], live=True) for count in (3, 4)
    ]
    with served(shown) as address:
        page = page_at(address)
        page.get_by_text("3 runs").wait_for()
        page.locator(".legend button").first.click()
        page.get_by_role("button", name="Number").click()
        drag(page, page.locator(".panel > .chart"), (0.5, 0.4), (0.8, 0.5))
        zoomed = tick_texts(page.locator(".panel > .chart"))
        page.mouse.move(0, 0)
        shown.pop(0)
        page.get_by_text("4 runs").wait_for()
        assert page.locator(".legend button").first.get_attribute("aria-pressed") == "false"
        assert not page.locator('.plot [data-key="0"] .line').is_visible()
        assert page.locator("tbody td").all_text_contents() == ["2", "1"]
        assert tick_texts(page.locator(".panel > .chart")) == zoomed
        page.goto("about:blank")


@contextmanager
def served(pages):
    """The first of these pages, whichever that is, on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = pages[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/page"
        finally:
            server.shutdown()
            thread.join()


def test_without_a_script_everything_is_there(page_at, report):
    page = page_at(report, java_script_enabled=False)
    assert page.locator(".plot .line").first.is_visible()
    assert page.locator("figure.table tbody tr").first.is_visible()
    assert page.locator("button").count() == 0  # nothing that would do nothing
    assert page.locator("figcaption").first.is_visible()
