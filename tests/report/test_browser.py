"""The report in a real browser: tooltips, zoom, legends, sorting, downloads, phones and dark mode."""

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
from pogm.benchmark.results.table import Column, Estimate, Row, Table
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Panel, Point, Region
from pogm.report.page import Section, paragraph, render, write_page
from pogm.report.runs import figures_of, write_report

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
DATASET = f"Digits {HOSTILE}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three algorithms, one of them with a hostile name, and a run that failed."""
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
    """A window of the browser that records messages, dialogs and requests of its pages."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.messages, self.requests, self.opened = [], [], []
        self.page.set_default_timeout(10000)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address):
        self.opened.append(address if isinstance(address, str) else address.as_uri())
        self.page.goto(self.opened[-1])
        return self.page

    def check(self):
        assert self.messages == []
        local = ("blob:", "data:")  # downloads
        assert [url for url in self.requests if url not in self.opened and not url.startswith(local)] == []


@pytest.fixture(scope="module")
def default_window(browser):
    window = Window(browser)
    yield window
    window.context.close()


@pytest.fixture
def page_at(browser, default_window):
    """Open a page. At the end of the test it must have no messages and no requests except for itself."""
    windows = []

    def open_page(address, **options):
        windows.append(Window(browser, **options) if options else default_window)
        return windows[-1].open(address)

    yield open_page
    for window in windows:
        window.check()
        if window is not default_window:
            window.context.close()


def chart_of(page, number=0):
    """Return a chart that is in view and interactive."""
    panel = page.locator("section .panel").nth(number)
    panel.evaluate("node => { const fold = node.closest('details'); if (fold) fold.open = true; }")
    panel.scroll_into_view_if_needed()
    chart = panel.locator(".chart")
    chart.locator("svg").wait_for()
    return chart


def point_at(page, chart, x, y):
    """Move the pointer to a position in a chart, given as fractions of its width and height."""
    box = chart.bounding_box()
    for shift in (1, 0):
        page.mouse.move(box["x"] + x * box["width"] + shift, box["y"] + y * box["height"])


def save(page, button, *, text=True):
    with page.expect_download() as download:
        button.click()
    path = download.value.path()
    return (path.read_text(encoding="utf-8") if text else path.read_bytes()), download.value.suggested_filename


def tick_texts(chart):
    """Return the labels of the x axis and of the y axis, each from the smallest to the largest."""
    axes = [axis.locator("text").all_text_contents() for axis in chart.locator(".role-axis-label").all()]
    return [sorted(texts, key=lambda text: numbers([text])[0]) for texts in axes]


def wait_for_ticks(page, chart, condition, texts):
    """Wait until the ticks of a chart are, or are not, these texts."""
    for _ in range(100):
        if (tick_texts(chart) == texts) == condition:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{tick_texts(chart)}, before: {texts}")


def tooltip(page):
    return page.locator("#vg-tooltip-element.visible")


def numbers(texts):
    """Return the means in some cells; None if missing."""
    found = [re.match(r"[-−+]?[\d.]+", text) for text in texts]
    return [float(match[0].replace("−", "-")) if match else None for match in found]


def test_headings_sort_both_ways_then_restore_the_order_with_missing_values_last(page_at, report):
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


def test_numbers_sort_as_numbers_with_any_text_after_them(page_at, tmp_path):
    values = ("9.4 ± 20.1", "12.5 ± 0.1", "−3.0 †", "–", "1e-3", "", "X failed", "+0.2")
    listing = text_table("Rows", ("Name", "Number"), tuple((f"row {i}", value) for i, value in enumerate(values)))
    page = page_at(write_page(tmp_path / "page.html", render("Numbers", [Section("S", (listing,))])))
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


def test_pointing_at_a_chart_shows_the_values_of_all_lines(page_at, report, runs):
    page = page_at(report)
    chart = chart_of(page)
    point_at(page, chart, 0.98, 0.5)
    text = tooltip(page).inner_text()
    lines = figures_of(runs, DATASET)[0].panels[0].marks
    assert re.search(r"step\s+299", text)
    for line in lines:
        assert line.name in text
        assert f"{line.points[-1].y:.4g} ± {line.points[-1].stderr:.2g} (n = {line.points[-1].n})" in text
    page.mouse.move(0, 0)
    tooltip(page).wait_for(state="detached")


def test_a_finger_shows_values(page_at, report):
    page = page_at(report, has_touch=True, viewport={"width": 375, "height": 700})
    chart_of(page).tap()
    tooltip(page).wait_for()
    assert "step" in tooltip(page).inner_text()
    box = tooltip(page).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375
    page.locator("nav").tap()
    tooltip(page).wait_for(state="detached")


def test_keys_show_values_and_zoom(page_at, report):
    page = page_at(report)
    chart = chart_of(page)
    whole = tick_texts(chart)
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        chart.press(key)
    assert re.search(r"step\s+30", tooltip(page).inner_text())
    chart.press("+")
    wait_for_ticks(page, chart, False, whole)
    chart.press("-")
    wait_for_ticks(page, chart, True, whole)


@pytest.mark.parametrize("way", ["double click", "button", "Escape"])
def test_zoom_changes_the_axes_and_reset_restores_them(page_at, report, way):
    page = page_at(report)
    figure, chart = page.locator("section figure.figure").first, chart_of(page)
    whole, line = tick_texts(chart), chart.locator(".mark-line.role-mark path").first
    path = line.get_attribute("d")
    assert not figure.get_by_role("button", name="Reset zoom").is_visible()
    chart.press("+")
    wait_for_ticks(page, chart, False, whole)
    steps = numbers(tick_texts(chart)[0])
    assert min(steps) > 70  # the middle half of the steps
    assert max(steps) < 230
    assert line.get_attribute("d") != path
    if way == "double click":
        chart.dblclick()
    elif way == "button":
        figure.get_by_role("button", name="Reset zoom").click()
    else:
        chart.press("Escape")
    wait_for_ticks(page, chart, True, whole)
    assert line.get_attribute("d") == path
    assert not figure.get_by_role("button", name="Reset zoom").is_visible()


def test_dragging_moves_the_axes(page_at, report):
    page = page_at(report)
    chart = chart_of(page)
    whole = tick_texts(chart)
    point_at(page, chart, 0.5, 0.5)
    page.mouse.down()
    point_at(page, chart, 0.7, 0.6)
    page.mouse.up()
    wait_for_ticks(page, chart, False, whole)


def test_the_wheel_zooms_only_with_the_control_key(page_at, report):
    page = page_at(report)
    chart = chart_of(page)
    chart.hover()
    whole = tick_texts(chart)
    page.mouse.wheel(0, -40)
    page.wait_for_timeout(200)
    assert tick_texts(chart) == whole  # the page scrolls
    chart.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    wait_for_ticks(page, chart, False, whole)


def test_lines_lie_where_the_axis_says(page_at, report, runs):
    """The last value of every line, read from the positions of the ticks, is its value."""
    page = page_at(report)
    chart = chart_of(page)
    whole = tick_texts(chart)
    chart.press("+")
    wait_for_ticks(page, chart, False, whole)
    chart.press("-")
    wait_for_ticks(page, chart, True, whole)
    ends = chart.locator(".mark-line.role-mark path").evaluate_all(
        "nodes => nodes.map(node =>"
        " node.getPointAtLength(node.getTotalLength()).matrixTransform(node.getScreenCTM()).y)"
    )
    grid = chart.locator(".role-axis-grid").last.locator("line")
    heights = sorted(grid.evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().top)"))
    values = numbers(tick_texts(chart)[1])[::-1]
    (y0, value0), (y1, value1) = (heights[0], values[0]), (heights[-1], values[-1])
    read = sorted(value0 + (y - y0) / (y1 - y0) * (value1 - value0) for y in ends)
    lines = figures_of(runs, DATASET)[0].panels[0].marks
    assert read == pytest.approx(sorted(line.points[-1].y for line in lines), abs=0.5)


def test_legend_entries_hide_and_show_their_lines(page_at, report):
    page = page_at(report)
    figure, chart = page.locator("section figure.figure").first, chart_of(page)
    entry, lines = figure.locator(".legend button").nth(1), chart.locator(".mark-line.role-mark path")
    count = lines.count()
    assert entry.get_attribute("aria-pressed") == "true"
    entry.click()
    page.wait_for_function(
        "n => document.querySelector('section .chart').querySelectorAll('.mark-line.role-mark path').length < n",
        arg=count,
    )
    assert entry.get_attribute("aria-pressed") == "false"
    point_at(page, chart, 0.98, 0.5)
    assert entry.inner_text() not in tooltip(page).inner_text()
    entry.click()
    page.wait_for_function(
        "n => document.querySelector('section .chart').querySelectorAll('.mark-line.role-mark path').length === n",
        arg=count,
    )


def test_a_chart_is_redrawn_if_the_width_of_the_page_changes(page_at, report):
    page = page_at(report, viewport={"width": 1000, "height": 700})
    svg = chart_of(page).locator("svg")
    before = svg.bounding_box()["width"]
    page.set_viewport_size({"width": 375, "height": 700})
    page.wait_for_function(
        "w => Math.abs(document.querySelector('section .chart svg').clientWidth - w) > 5", arg=before
    )
    panel = page.locator("section .panel").first.bounding_box()
    assert svg.bounding_box()["width"] <= panel["width"] + 1


def test_figures_can_be_downloaded_as_csv(page_at, report, runs):
    page = page_at(report)
    figure = figures_of(runs, DATASET)[0]
    text, name = save(page, page.locator("section figure.figure").first.get_by_role("button", name="CSV"))
    assert name == f"{figure.name}.csv"
    assert text == figure.csv()


def test_tables_can_be_downloaded_as_csv(page_at, report, runs):
    page = page_at(report)
    text, _ = save(page, page.locator("figure.table").first.get_by_role("button", name="CSV"))
    assert text == dataset_table(runs, DATASET, TRAINING_DOMAIN).csv()


def test_lists_can_be_downloaded_as_csv(page_at, report, runs):
    page = page_at(report)
    page.locator("section details").last.locator("summary").click()
    text, _ = save(page, page.locator("section details").last.get_by_role("button", name="CSV"))
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + len(runs)


def test_figures_can_be_downloaded_as_svg_and_png_without_hidden_names(page_at, report):
    page = page_at(report, color_scheme="dark")
    figure = page.locator("section figure.figure").first
    hidden, kept, *_ = figure.locator(".legend li").all_text_contents()
    figure.locator(".legend button").first.click()
    text, name = save(page, figure.get_by_role("button", name="SVG"))
    root = ElementTree.fromstring(text)
    assert name.endswith(".svg")
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert hidden.strip() not in texts
    assert kept.strip() in texts
    assert "var(" not in text
    assert "#ffffff" in text  # light, also from a dark page
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    content, name = save(page, figure.get_by_role("button", name="PNG"), text=False)
    assert content.startswith(b"\x89PNG")
    assert name.endswith(".png")


def test_dots_and_arrows_have_tooltips_and_square_axes_keep_their_unit(page_at, tmp_path):
    page = page_at(write_page(tmp_path / "page.html", render("Shapes", [Section("Shapes", (GEOMETRY,))])))
    dots, arrows = chart_of(page, 0), chart_of(page, 1)
    dot = dots.locator(".mark-symbol.role-mark path").first.bounding_box()
    page.mouse.move(dot["x"] + dot["width"] / 2 + 1, dot["y"] + dot["height"] / 2)
    page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    assert tooltip(page).inner_text().split() == ["name", "dots", "across", "0", "up", "0"]
    unit = """chart => {
        const at = (axis) => [...chart.querySelectorAll('.role-axis-grid')].map((grid) =>
            [...grid.querySelectorAll('line')].map((line) => line.getBoundingClientRect()));
        const [x, y] = at(), texts = [...chart.querySelectorAll('.role-axis-label')].map((labels) =>
            [...labels.querySelectorAll('text')].map((text) => Number(text.textContent.replace('−', '-'))));
        const step = texts.map(([first, second]) => second - first);
        return [(x[1].left - x[0].left) / step[0], (y[0].top - y[1].top) / step[1]];
    }"""
    for _ in range(2):
        across, up = arrows.evaluate(unit)
        assert across == pytest.approx(up, rel=0.03)
        whole = tick_texts(arrows)
        arrows.press("+")
        wait_for_ticks(page, arrows, False, whole)


def test_names_are_text(page_at, report):
    page = page_at(report)
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    page.locator("details summary").first.click()


def test_a_phone_does_not_scroll_sideways(page_at, report):
    page = page_at(report, viewport={"width": 375, "height": 812})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for part in page.locator("details summary").all():
        part.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_wide_table_uses_the_window_and_a_narrow_one_is_as_wide_as_the_text(page_at, tmp_path):
    names, cells = tuple(f"Dataset {number}" for number in range(9)), ("+0.10 ± 0.18",) * 9
    tables = [text_table(f"{n} columns", names[:n], (cells[:n],)) for n in (9, 2)]
    shown = write_page(tmp_path / "page.html", render("Tables", [Section("S", tuple(tables))]))
    page = page_at(shown, viewport={"width": 1280, "height": 800})
    wide, narrow = (page.locator("figure.table").nth(n) for n in (0, 1))
    assert wide.locator(".scroll").evaluate("e => e.scrollWidth - e.clientWidth") == 0
    assert wide.locator("table").bounding_box()["width"] > page.locator("h1").bounding_box()["width"]
    assert narrow.locator("table").bounding_box()["width"] == page.locator("h1").bounding_box()["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_table_that_is_too_wide_has_standard_errors_below_the_means(page_at, tmp_path):
    columns, row = tuple(Column(f"Dataset {n}") for n in range(7)), Row((Estimate(-10.5, 0.25, 5),) * 7, "ERM")
    table = Table("Wide", columns, (row,), row_key="algorithm")
    shown = write_page(tmp_path / "page.html", render("Wide", [Section("S", (table,))]))
    page = page_at(shown, viewport={"width": 1280, "height": 700})
    positions = """cell => {
        const [mean, error] = [cell.firstChild, cell.querySelector("small")].map((node) => {
            const range = document.createRange();
            range.selectNode(node);
            return range.getBoundingClientRect();
        });
        return error.top >= mean.bottom - 4;
    }"""
    cell = page.locator("figure.table td:has(small)").first
    for width, is_below in ((1280, False), (700, True), (1280, False)):
        page.set_viewport_size({"width": width, "height": 700})
        page.locator(".tight" if is_below else ".fits").wait_for()
        assert cell.evaluate(positions) == is_below


def test_the_head_of_a_long_table_stays_visible(page_at, tmp_path):
    listing = text_table("Rows", ("Name", "Number"), tuple((f"row {i}", i) for i in range(60)))
    for sections in (1, 2):  # a page with two sections has a navigation
        shown = render("Long", [Section(f"S{n}", (listing,)) for n in range(sections)])
        page = page_at(write_page(tmp_path / f"{sections}.html", shown), viewport={"width": 1280, "height": 700})
        page.locator("tbody tr").nth(50).scroll_into_view_if_needed()
        box = page.locator("thead th").first.bounding_box()
        bottom = page.locator("nav").bounding_box()["height"] if sections > 1 else 0
        assert box["y"] == pytest.approx(bottom, abs=2)


def test_a_long_navigation_is_complete_and_does_not_cover_the_section(page_at, tmp_path):
    sections = [Section(f"Section {n} about OfficeCaltech10", (paragraph("Text. " * 2000),)) for n in range(8)]
    page = page_at(
        write_page(tmp_path / "page.html", render("Long", sections)), viewport={"width": 1280, "height": 700}
    )
    page.wait_for_function("document.documentElement.style.getPropertyValue('--nav') > '42px'")
    last = page.locator("nav a").last
    box, nav = last.bounding_box(), page.locator("nav").bounding_box()
    assert box["x"] + box["width"] <= nav["x"] + nav["width"]
    page.locator("nav a").nth(4).click()
    nav = page.locator("nav").bounding_box()
    assert page.locator("section").nth(4).bounding_box()["y"] >= nav["y"] + nav["height"] - 1


def test_dark_mode_has_a_dark_background(page_at, report):
    backgrounds = [
        page_at(report, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    light, dark = (sum(map(int, re.findall(r"\d+", background)[:3])) for background in backgrounds)
    assert light > 600
    assert dark < 150


def test_print_is_light_in_dark_mode_and_has_no_buttons(page_at, report):
    page = page_at(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.get_by_role("button", name="CSV").first.is_visible()


def test_everything_is_open_on_paper_and_as_before_afterwards(page_at, report):
    page = page_at(report)
    closed = page.locator("details:not([open])").count()
    assert closed > 2
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed


def test_paper_shows_everything_without_javascript(page_at, report):
    page = page_at(report, java_script_enabled=False)
    page.emulate_media(media="print")
    hidden = page.locator("details").evaluate_all(
        "nodes => nodes.filter(node => !node.lastElementChild.checkVisibility({contentVisibilityAuto: true})).length"
    )
    assert hidden == 0


def test_the_first_thing_is_the_finding_and_figures_are_closed_on_a_phone(page_at, report):
    heights = {}
    for width in (1280, 390):
        page = page_at(report, viewport={"width": width, "height": 800})
        assert "has the highest mean accuracy" in page.locator("h1 + .finding").inner_text()
        chart = page.locator("header .panel svg").first
        chart.wait_for()
        assert chart.bounding_box()["y"] < 800
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        heights[width] = page.evaluate("document.documentElement.scrollHeight")
        assert page.locator("section .panel").first.is_visible() == (width == 1280)
    assert heights[390] < 1.3 * heights[1280]


def test_rows_of_the_main_figure_have_tooltips_and_keep_their_height(page_at, report):
    page = page_at(report)
    chart = page.locator("header .panel .chart").first
    dot = chart.locator(".mark-symbol.role-mark path").first
    dot.wait_for()
    dot.hover()
    assert "(n = 2)" in tooltip(page).inner_text()
    assert chart.bounding_box()["height"] < 200


def test_a_live_page_updates_and_keeps_order_zoom_and_hidden_names(page_at, monkeypatch):
    monkeypatch.setattr("pogm.report.page.SECONDS", 0.1)
    lines = [Line(name, tuple(Point(i, i * (index + 1)) for i in range(9)), index) for index, name in enumerate("ab")]
    figure = Figure("curves", "Curves", (Panel("One", tuple(lines)),))
    table = text_table("Rows", ("Name", "Number"), (("x", 1), ("y", 2)))
    pages = [render("Live", [Section("S", (paragraph(f"{count} runs"), figure, table))], live=True) for count in (3, 4)]
    with serve(pages) as address:
        page = page_at(address)
        page.get_by_text("3 runs").wait_for()
        chart = chart_of(page)
        whole = tick_texts(chart)
        page.locator(".legend button").first.click()
        page.get_by_role("button", name="Number").click()
        chart.press("+")
        wait_for_ticks(page, chart, False, whole)
        zoomed = tick_texts(chart)
        page.mouse.move(0, 0)
        pages.pop(0)
        page.get_by_text("4 runs").wait_for()
        assert page.locator(".legend button").first.get_attribute("aria-pressed") == "false"
        assert page.locator("tbody td").all_text_contents() == ["2", "1"]
        page.wait_for_function("() => document.querySelectorAll('.chart .mark-line.role-mark path').length === 1")
        assert tick_texts(chart_of(page)) == zoomed
        assert page.get_by_role("button", name="Reset zoom").is_visible()
        page.goto("about:blank")


@contextmanager
def serve(pages):
    """Serve the first page of a list, which can change."""

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


def test_without_javascript_tables_and_charts_are_shown(page_at, report):
    page = page_at(report, java_script_enabled=False)
    assert page.locator("section .panel .mark-line.role-mark path").first.is_visible()
    assert page.locator("figure.table tbody tr").first.is_visible()
    assert page.locator("button").count() == 0
    assert page.locator("figcaption").first.is_visible()
