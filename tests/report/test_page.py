"""Pages: one file that loads nothing, runs only its script, and names the command of every exhibit."""

import base64
import csv
import hashlib
import io
import math
import re
from importlib import resources

import pytest
from html_pages import Page
from run_folders import text_table

from pogm.benchmark.results.accuracy_tables import dataset_table
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.report.figure import Cloud, Figure, Line, Panel, Point
from pogm.report.page import Fold, Section, paragraph, render, script, sentence, slug, write_page

HOSTILE = '</script><script>alert(1)</script><!--<script>"'
LINE = Line("ERM", (Point(0, 1.0, 0.1, 3), Point(10, math.nan), Point(20, 2.0, 0.2, 2)))
VEGA_LITE = {"https://vega.github.io/schema/vega-lite/v6.json"}  # names the format; it is never loaded
FIGURE = Figure("angles", "Angles", (Panel("One", (LINE,)),), "How to read it.", ("What was measured.",))


def page_of(*sections, **options):
    return Page(render("A title", sections, **options))


def test_a_page_has_a_title_facts_and_a_link_to_every_section():
    page = page_of(
        Section("First, then"), Section("Second"), facts={"Runs": "3 done", "Nothing": ""}, command="make it"
    )
    assert [value for name, value in page.attributes if name == "href"] == ["#first-then", "#second"]
    assert {("id", "first-then"), ("id", "second")} <= set(page.attributes)
    assert "A title" in page.text
    assert "make it" in page.text
    assert "Runs 3 done" in page.text
    assert "Nothing" not in page.text


def test_sections_with_the_same_title_have_different_addresses():
    page = page_of(Section("Same"), Section("Same"), Section("same!"), Section("日本"))
    addresses = [value for name, value in page.attributes if name == "href"]
    assert len(set(addresses)) == 4


def test_a_page_names_no_folder_of_the_machine():
    text = page_of(
        Section("S"), command="pogm report /home/me/runs --out=/data/x 'a/b'", provenance={"data": "/mnt/images/"}
    ).text
    assert "pogm report …/runs --out=…/x 'a/b'" in text
    assert "data …/images" in text


def test_exhibits_of_a_fold_have_the_title_of_the_fold_only():
    page = page_of(Section("S", (Fold("Angles", (FIGURE,), open_if_wide=True), Fold("Closed", (paragraph("P"),)))))
    assert page.text.count("Angles") == 1
    assert [name for name, _ in page.attributes if name == "open"] == ["open"]
    assert page.programs == [script()]


def test_text_is_escaped_and_split_into_paragraphs():
    page = page_of(Section("S", (paragraph("<em>Three.</em>"),), "One\nline.\n\n<em>Two.</em>"))
    assert page.tags.count("em") == 0
    assert page.tags.count("p") == 1 + 3  # and the one that says when the page was made
    assert "One line. <em>Two.</em> <em>Three.</em>" in page.text


def test_a_number_of_the_main_finding_stays_in_one_line_with_its_error_and_unit():
    text = render("A title", [], lead=[sentence("A mean of 83.2 ± 0.6 %, n = 3; it is high.")])
    assert "of 83.2\u00a0±\u00a00.6\u00a0%, n\u00a0=\u00a03; it" in text


def test_a_figure_has_its_explanation_its_notes_and_its_command():
    text = page_of(Section("S", (FIGURE,), command="pogm experiment figure4"), command="page").text
    assert "How to read it. What was measured. Made by pogm experiment figure4" in text


def test_a_section_can_have_its_own_command():
    text = page_of(Section("S", (FIGURE,), command="section"), command="page").text
    assert "Made by section" in text
    assert "Made by page" not in text


def test_a_table_states_its_selection_rule_its_n_and_its_command(make_sweep):
    runs = make_sweep(labels=("ERM", "POGM"), seeds=2, domains=("A", "B"), dataset="Toy")
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    page = page_of(Section("Table 7", (table,), command="pogm experiment table7"))
    for words in ("Toy", TRAINING_DOMAIN.title, TRAINING_DOMAIN.rule, "n = 2 trials", "Made by pogm experiment table7"):
        assert words in page.text
    assert {"name": "toy-training-domain", "csv": table.csv()} in page.data


def test_table_of_texts_is_shown_with_its_notes():
    page = page_of(Section("S", (text_table("Pairs", ("Pair", "ρ"), (("A, B", 0.5),), ("n = 1.",)),)))
    assert "Pairs Pair ρ A, B 0.5 n = 1." in page.text
    (data,) = [data["csv"] for data in page.data if "csv" in data]
    assert list(csv.reader(io.StringIO(data))) == [["Pair", "ρ"], ["A, B", "0.5"]]


def test_a_page_contains_the_numbers_of_a_figure_and_gaps_are_null():
    (data,) = [data for data in page_of(Section("S", (FIGURE,))).data if "spec" in data]
    rows = data["spec"]["vconcat"][-1]["concat"][0]["data"]["values"]
    assert [(row["x"], row["y"], row.get("stderr"), row.get("n")) for row in rows] == [
        *[(0, 1.0, 0.1, 3), (10, None, None, None), (20, 2.0, 0.2, 2)]
    ]
    assert {(row["kind"], row["name"], row["mark"]) for row in rows} == {("line", "ERM", 0)}
    assert data["csv"] == FIGURE.csv()


def test_a_page_loads_nothing():
    text = render("A title", [Section("S", (FIGURE,))])
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    without_script = text.replace(page.programs[0], "")  # the browser enforces the policy for the script
    addresses = set(re.findall(r"https?://[^\"' <;]+", without_script))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"} | VEGA_LITE
    assert set(re.findall(r"url\((.)", without_script)) <= {"#"}  # clip paths of the same drawing
    assert "@import" not in text


def test_a_live_page_has_charts_without_static_drawings():
    static, live = (page_of(Section("S", (FIGURE,)), live=live) for live in (False, True))
    assert static.tags.count("svg") == live.tags.count("svg") + 1


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_only_the_script_of_the_page(live):
    page = page_of(Section("S", (FIGURE,)), live=live)
    (program,) = page.programs
    (policy,) = [value for _, value in page.attributes if value and value.startswith("default-src")]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy == allowed + "; connect-src 'self'" * live
    assert ("connect-src 'self'" in policy) == live
    assert (("data-live", "3") in page.attributes) == live


def test_our_script_does_not_write_markup():
    script = resources.files("pogm.report").joinpath("report.js").read_text(encoding="utf-8")
    assert not re.search("</script|<!--|<script", script, re.IGNORECASE)
    assert not re.search(r"HTML\s*=[^=]|insertAdjacentHTML|document\.write|\beval\b", script)


def test_page_without_charts_is_small():
    (program,) = page_of(Section("Sites", (text_table("Sites", ("a",), (("1",),), ()),))).programs
    assert program == script(charts=False)
    assert "vega-lite" not in program[:1000]
    assert len(program) < len(script()) / 10


def test_names_cannot_end_a_data_block():
    line = Line(HOSTILE, LINE.points)
    figure = Figure("f", HOSTILE, (Panel(HOSTILE, (line, Cloud(HOSTILE, LINE.points))),), HOSTILE, (HOSTILE,))
    listing = text_table(HOSTILE, (HOSTILE,), ((HOSTILE,),), (HOSTILE,))
    page = page_of(Section(HOSTILE, (figure, listing), HOSTILE), command=HOSTILE, facts={HOSTILE: HOSTILE})
    assert page.programs == [script()]
    (data,) = [data for data in page.data if "spec" in data]
    assert data["spec"]["vconcat"][-1]["concat"][0]["data"]["values"][0]["name"] == HOSTILE


@pytest.mark.parametrize(
    ("name", "address"), [("Table 3: α, E & κ", "table-3-e"), ("../../x", "x"), ("日本", "untitled")]
)
def test_addresses_have_only_letters_digits_and_hyphens(name, address):
    assert slug(name) == address


def test_writing_a_page_makes_its_folders_and_leaves_no_other_files(tmp_path):
    path = write_page(
        tmp_path / "some" / "where" / "page.html", render("A title", [Section("S", (FIGURE,))], command="make")
    )
    assert [found.name for found in path.parent.iterdir()] == ["page.html"]
    assert Page(path.read_text(encoding="utf-8")).text.startswith("A title")
