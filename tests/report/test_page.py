"""One file that needs nothing, runs its one script, and says of every exhibit where it comes from."""

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
from pogm.report.escaping import data_block, slug
from pogm.report.figure import Cloud, Figure, Line, Panel, Point
from pogm.report.markup import Html
from pogm.report.page import SCRIPTS, Section, render, write_page

HOSTILE = '</script><script>alert(1)</script><!--<script>"'
LINE = Line("ERM", (Point(0, 1.0, 0.1, 3), Point(10, math.nan), Point(20, 2.0, 0.2, 2)))
FIGURE = Figure("angles", "Angles", (Panel("One", (LINE,)),), "How to read it.", ("What was measured.",))


def page_of(*sections, **options):
    return Page(render("A title", sections, **options))


def test_a_page_has_a_title_facts_and_a_way_to_every_section():
    page = page_of(
        Section("First, then"), Section("Second"), facts={"Runs": "3 done", "Nothing": ""}, command="make it"
    )
    assert [value for name, value in page.attributes if name == "href"] == ["#first-then", "#second"]
    assert {("id", "first-then"), ("id", "second")} <= set(page.attributes)
    assert "A title" in page.text
    assert "make it" in page.text
    assert "Runs 3 done" in page.text
    assert "Nothing" not in page.text


def test_sections_of_one_name_have_addresses_of_their_own():
    page = page_of(Section("Same"), Section("Same"), Section("same!"), Section("日本"))
    addresses = [value for name, value in page.attributes if name == "href"]
    assert len(set(addresses)) == 4


def test_text_comes_in_paragraphs_and_markup_only_where_it_is_meant():
    page = page_of(Section("S", (Html("<em>meant</em>"),), "One\nline.\n\n<em>Two.</em>"))
    assert page.tags.count("em") == 1
    assert page.tags.count("p") == 1 + 2  # and the one that says when it was made
    assert "One line." in page.text


def test_a_figure_says_how_to_read_it_how_it_came_about_and_which_command_makes_it():
    text = page_of(Section("S", (FIGURE,)), command="pogm experiment figure4").text
    assert "How to read it. What was measured. Made by pogm experiment figure4" in text


def test_a_section_may_have_a_command_of_its_own():
    text = page_of(Section("S", (FIGURE,), command="mine"), command="the page's").text
    assert "Made by mine" in text
    assert "Made by the page's" not in text


def test_a_table_says_its_selection_rule_its_n_and_its_command(make_sweep):
    runs = make_sweep(labels=("ERM", "POGM"), seeds=2, domains=("A", "B"), dataset="Toy")
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    page = page_of(Section("Table 7", (table,)), command="pogm experiment table7")
    for words in ("Toy", TRAINING_DOMAIN.title, TRAINING_DOMAIN.rule, "n = 2 trials", "Made by pogm experiment table7"):
        assert words in page.text
    assert {"name": "toy-training-domain", "csv": table.csv()} in page.data


def test_table_of_texts_is_shown_with_its_notes():
    page = page_of(Section("S", (text_table("Pairs", ("Pair", "ρ"), (("A, B", 0.5),), ("n = 1.",)),)))
    assert "Pairs Pair ρ A, B 0.5 n = 1." in page.text
    (data,) = [data["csv"] for data in page.data if "csv" in data]
    assert list(csv.reader(io.StringIO(data))) == [["Pair", "ρ"], ["A, B", "0.5"]]


def test_the_numbers_of_a_figure_are_in_the_page_and_gaps_are_null():
    (data,) = [data for data in page_of(Section("S", (FIGURE,))).data if "panels" in data]
    (mark,) = data["panels"][0]["marks"]
    assert mark["points"] == [[0, 1.0, 0.1, 3], [10, None, 0.0, 1], [20, 2.0, 0.2, 2]]
    assert (mark["kind"], mark["name"], mark["key"]) == ("line", "ERM", 0)


def test_a_page_needs_nothing_from_elsewhere():
    text = render("A title", [Section("S", (FIGURE,))])
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert set(re.findall(r"https?://[^\"' <;]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.parametrize("live", [False, True])
def test_the_browser_may_run_that_one_script_and_no_other(live):
    page = page_of(Section("S", (FIGURE,)), live=live)
    (program,) = page.programs
    (policy,) = [value for _, value in page.attributes if value and value.startswith("default-src")]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'")
    assert ("connect-src 'self'" in policy) == live
    assert (("data-live", "3") in page.attributes) == live


def test_the_script_cannot_end_itself():
    scripts = [resources.files("pogm.report").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    assert not re.search("</script|<!--|<script", "".join(scripts), re.IGNORECASE)
    assert not re.search(r"HTML\s*=[^=]|insertAdjacentHTML|document\.write|\beval\b", "".join(scripts))


def test_names_in_data_cannot_end_their_block():
    line = Line(HOSTILE, LINE.points)
    figure = Figure("f", HOSTILE, (Panel(HOSTILE, (line, Cloud(HOSTILE, LINE.points))),), HOSTILE, (HOSTILE,))
    listing = text_table(HOSTILE, (HOSTILE,), ((HOSTILE,),), (HOSTILE,))
    page = page_of(Section(HOSTILE, (figure, listing), HOSTILE), command=HOSTILE, facts={HOSTILE: HOSTILE})
    assert page.programs == page_of().programs
    assert page.data[0]["panels"][0]["marks"][0]["name"] == HOSTILE
    assert "<" not in data_block({"name": HOSTILE}).removeprefix("<script").removesuffix("</script>")


@pytest.mark.parametrize(
    ("name", "address"), [("Table 3: α, E & κ", "table-3-e"), ("../../x", "x"), ("日本", "untitled")]
)
def test_addresses_are_plain(name, address):
    assert slug(name) == address


def test_a_page_is_written_whole_into_folders_that_it_makes(tmp_path):
    path = write_page(tmp_path / "some" / "where" / "page.html", "A title", [Section("S", (FIGURE,))], command="make")
    assert [found.name for found in path.parent.iterdir()] == ["page.html"]
    assert Page(path.read_text(encoding="utf-8")).text.startswith("A title")
