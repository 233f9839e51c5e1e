"""Charts and tables of the measurements of probes, their explanations and the conclusion."""

import re

import pytest
from html_pages import Page

from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.table import Table
from pogm.report.diagnostics import DOTS, SUITS, measurements, rounds_of, suits
from pogm.report.figure import Cloud
from pogm.report.runs import write_report

ORTHOGONAL = [[1.0, 0.0], [0.0, 1.0]]
OPPOSED = [[1.0, -0.5], [-0.5, 1.0]]


def rounds(angles, *, first=1, gramian=ORTHOGONAL, **more):
    """Return rounds of two source domains as a probe writes them."""
    count = len(angles)
    return {
        "round": list(range(first, first + count)),
        "cosine": angles,
        "difference": [[1.0, 3.0]] * count,
        "layer_difference": [[2.0, 4.0]] * count,
        "magnitude": [0.25] * count,
        "invariant": [None] * count,
        "gramian": [gramian] * count,
    } | {name: [value] * count for name, value in more.items()}


@pytest.fixture
def measure(make_run, make_record, tmp_path):
    """Write a run whose records have these rounds, and read all runs."""

    def make(*parts, **options):
        records = [make_record(30 * i, [0.5] * 3, [0.5] * 3, rounds=part) for i, part in enumerate(parts)]
        make_run(records, **options)
        return read_runs(tmp_path)

    return make


def panel_named(figures, title):
    (found,) = [panel for figure in figures for panel in figure.panels if panel.title.startswith(title)]
    return found


def points(panel, label="ERM"):
    (mark,) = [mark for mark in panel.marks if mark.name == label]
    return [(point.x, pytest.approx(point.y)) for point in mark.points]


def test_a_measurement_is_the_mean_of_the_rounds_since_the_last_record_and_over_domains(measure):
    runs = measure(rounds([[0.1, 0.3]]), rounds([[0.2, 0.4], [0.6, 0.8], [None, None]], first=2))
    figures = measurements(runs, "Toy", rounds_of(runs))
    assert points(panel_named(figures, "Mean cosine")) == [(0, 0.2), (30, 0.5)]
    assert points(panel_named(figures, "Norm difference")) == [(0, 2.0), (30, 2.0)]
    assert points(panel_named(figures, "Magnitude")) == [(0, 0.25), (30, 0.25)]


def test_measurements_that_are_undefined_in_every_round_are_left_out(measure):
    runs = measure(rounds([[0.1, 0.3]]))
    titles = [panel.title for figure in measurements(runs, "Toy", rounds_of(runs)) for panel in figure.panels]
    assert "Invariant cosine" not in titles


def test_scatter_plots_have_the_correlation_and_the_gap_of_the_cosines(measure):
    runs = measure(rounds([[0.1, 0.3], [0.2, 0.4], [0.6, 0.8]]))
    panel = panel_named(measurements(runs, "Toy", rounds_of(runs)), "ERM")
    assert panel.title == "ERM: ρ = 1.00, gap 0.20"
    assert panel.square
    (cloud,) = [mark for mark in panel.marks if isinstance(mark, Cloud)]
    assert {(point.x, point.y) for point in cloud.points} == {(0.1, 0.3), (0.2, 0.4), (0.6, 0.8)}


def test_large_scatter_plots_have_a_sample_of_the_dots_and_a_note(measure):
    many = [[i / 2000, 0.5 - i / 2000] for i in range(DOTS + 100)]
    runs = measure(rounds(many))
    figure = measurements(runs, "Toy", rounds_of(runs))[-1]
    (cloud,) = [mark for mark in figure.panels[0].marks if isinstance(mark, Cloud)]
    assert len(cloud.points) == DOTS
    assert f"Of up to {DOTS + 100} dots of an algorithm, {DOTS} are drawn" in " ".join(figure.notes)
    assert figure.panels[0].title.startswith("ERM: ρ = −1.00")


def test_conflicts_and_the_worst_case_are_those_of_the_gramian(measure):
    runs = measure(rounds([[0.1, 0.3]] * 2), rounds([[0.1, 0.3]] * 4, gramian=OPPOSED, first=3))
    (section,) = suits(runs, rounds_of(runs))
    numbers, *figures, _ = section.exhibits
    by_name = {figure.name: figure for figure in figures}
    assert points(by_name["suits_conflicts"].panels[0]) == [(0, 0.0), (30, 100.0)]
    # h_1 and h_2 at right angles: d = 1.5 h_0 is the best in the ball, and 0.75 is what it is worth.
    assert points(by_name["suits_worst"].panels[0])[0] == (0, 0.75)
    assert isinstance(numbers, Table)
    texts = numbers.row_texts(numbers.rows[0])
    assert texts[:3] == ["Toy", "ERM", "66.7"]
    assert texts[-1] == "1"


def test_hull_and_divergence_are_shown_if_they_were_measured(measure):
    inside = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.5, 0.5, 0.5]]  # h_T is the mean of h_1 and h_2
    runs = measure(rounds([[0.1, 0.3]]))
    (section,) = suits(runs, rounds_of(runs))
    names = {figure.name for figure in section.exhibits[1:-1]}
    assert names == {"suits_conflicts", "suits_worst", "suits_alignment_variance_relative"}
    asked = {"gramian": inside, "divergence": [[0.0, 0.2], [0.4, 0.0]]}
    runs = measure(rounds([[0.1, 0.3]], **asked), label="POGM", test_domains=[2])
    (section,) = suits(runs, rounds_of(runs))
    by_name = {figure.name: figure for figure in section.exhibits[1:-1]}
    (panel,) = by_name["suits_hull"].panels
    assert panel.title == "Toy, held out: C"
    assert points(panel, "POGM") == [(0, 0.0)]
    assert points(by_name["suits_hull_cosine"].panels[0], "POGM") == [(0, 1.0)]
    assert points(by_name["suits_divergence"].panels[0], "POGM") == [(0, 0.3)]


def test_inner_product_and_variance_of_alignment_are_drawn_and_listed(measure):
    """U = (0.1, 0.3)·‖h‖ with ‖h‖² = 0.25 and ‖h_i‖ = 1: variance (0.05)² = 0.0025, relative 0.01. GIP: 2·(−0.5)."""
    runs = measure(rounds([[0.1, 0.3]] * 2, gramian=OPPOSED))
    figures = measurements(runs, "Toy", rounds_of(runs))
    assert points(panel_named(figures, "Gradient inner product")) == [(0, -1.0)]
    assert points(panel_named(figures, "Variance of alignment")) == [(0, 0.0025)]
    (section,) = suits(runs, rounds_of(runs))
    numbers = section.exhibits[0]
    values = dict(zip(numbers.headings, numbers.row_texts(numbers.rows[0]), strict=True))
    assert values["Σ hᵢ·hⱼ over i ≠ j"] == "-1.00"
    assert values["Var(hᵢ·h) over i"] == "0.00250"
    assert values["Var(hᵢ·h), relative"] == "0.0100"
    assert "cosine with the nearest mixture" not in values  # not measured, so only in the CSV
    assert "cosine with the nearest mixture" in numbers.csv()


def test_the_section_ends_with_a_conclusion_for_each_dataset(measure, tmp_path):
    runs = measure(rounds([[0.1, 0.3]], gramian=OPPOSED))
    html = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    section = html[html.index('<section id="does-pogm-suit-these-data') :].partition("</section>")[0]
    assert section.rstrip().endswith("</p>")
    last = section[section.rindex("<h3") :]
    assert "Conclusion" in last
    assert "<b>Toy.</b> In training with ERM, domains conflict often: in 100 % of rounds" in last
    assert "pass --target to <code>pogm measure</code> to see" in last
    assert "(hᵢ·h " in last
    assert "h_i" not in last
    assert "Recommendation: " in last


@pytest.mark.parametrize("measurement", SUITS, ids=lambda measurement: measurement.name)
def test_every_diagnostic_is_explained_in_two_sentences(measurement):
    assert len(re.findall(r"\.(?=\s|$)", measurement.explanation)) == 2


def test_a_report_of_measured_runs_has_the_section_on_pogm(measure, tmp_path):
    runs = measure(rounds([[0.1, 0.3]]), rounds([[0.2, 0.4]], first=2))
    text = Page(write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Does POGM suit these data?" in text
    assert "Updates during training" in text


def test_a_report_without_measurements_has_no_section_on_pogm(make_sweep, tmp_path):
    runs = make_sweep(labels=("ERM",), seeds=1, domains=("A", "B"))
    assert measurements(runs, "RotatedDigits", rounds_of(runs)) == []
    text = Page(write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Does POGM suit these data?" not in text
