"""Leaderboard and report of the evidence: counts of datasets, the summary, and pages in HTML."""

import pytest
from evidence_runs import HEART, PACS, runs_of

from pogm._system.errors import UsageError
from pogm.evidence.leaderboard import evidence_tables, leaderboard, summary, write_evidence
from pogm.evidence.sweeps import SWEEPS
from pogm.evidence.tables import evidence_table


def test_leaderboard_counts_datasets_with_intervals_above_and_below_zero():
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.1, "IRM": -0.1, "POGM": -0.001})
    table = leaderboard({HEART: runs})
    counts = {row.key: row.cells[:3] for row in table.rows}
    assert counts == {"ERM": (0, 0, 0), "Fish": (1, 0, 0), "IRM": (0, 0, 1), "POGM": (0, 1, 0)}
    assert table.texts()["Fish"][5] == "+10.20 ± 0.07"
    assert summary({HEART: runs}) == (
        "3 comparisons with ERM on 1 dataset: 1 better, 1 worse, 1 tied (95 %, corrected)."
    )


def test_rows_on_all_datasets_come_before_larger_differences_on_some():
    """TENT was second, with the result of one dataset."""
    complete = {
        HEART: runs_of(HEART, {"ERM": 0.0, "Fish": 0.01, "SD": 0.02, "MTL": 0.2}),
        PACS: runs_of(PACS, {"ERM": 0.0, "Fish": 0.01, "CORAL": 0.1}),
    }
    assert [row.key for row in leaderboard(complete).rows] == ["Fish", "ERM", "MTL", "CORAL", "SD"]


def test_tables_name_methods_that_see_other_test_samples():
    runs = runs_of(HEART, {"ERM": 0.0, "MTL": 0.0, "ERM + T3A": 0.0})
    for table in (leaderboard({HEART: runs}), evidence_table(HEART, runs)):
        notes = [note for note in table.footnotes if note.startswith("Predictions also use")]
        assert [note.rsplit(": ")[-1] for note in notes] == ["MTL.", "ERM + T3A."]


def test_rows_with_fewer_than_five_seeds_are_not_counted():
    runs = runs_of(PACS, {"ERM": 0.0, "Fish": 0.1}, 5) + runs_of(PACS, {"CORAL": 0.1, "Reptile": 0.1}, 4)
    assert {row.key: row.cells[:3] for row in leaderboard({PACS: runs}).rows if row.key != "ERM"} == {
        "Fish": (1, 0, 0),
        "CORAL": (0, 0, 0),
        "Reptile": (0, 0, 0),
    }
    assert summary({PACS: runs}).endswith(" tied (95 %, corrected), and 2 not tested (fewer than 5 seeds).")


def test_pages_have_the_tables_and_load_nothing(tmp_path):
    complete = {HEART: runs_of(HEART, {"ERM": 0.0, "Fish": 0.1})}
    evidence, board = write_evidence(complete, tmp_path, "pogm report results")
    for path in (evidence, board):
        text = path.read_text()
        assert "+10.20" in text
        assert "default-src 'none'" in text
        assert 'src="http' not in text
        assert 'href="http' not in text
    assert "Critical differences" in evidence.read_text()
    assert "default hyperparameters, network mlp." in evidence.read_text()
    assert len(board.read_text()) < 100_000
    with pytest.raises(UsageError, match="complete rows of ERM and another method"):
        write_evidence({HEART: runs_of(HEART, {"ERM": 0.0})}, tmp_path, "")
    titles = [table.title for table in evidence_tables(complete)]
    assert titles[:2] == ["Leaderboard", "HeartDisease: all methods against ERM"]


def test_leaderboard_of_all_sweeps_needs_no_horizontal_scrolling(browser, tmp_path):
    """With seven datasets, the last two columns were outside of a window of 1280 px."""
    complete = {sweep: runs_of(sweep, {"ERM": 0.0, "ERM + SWAD": 0.1, "POGM": -0.2}, 2) for sweep in SWEEPS}
    assert len(complete) >= 7
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    for path in write_evidence(complete, tmp_path, "pogm report results"):
        page.goto(path.as_uri())
        fits = "() => { const e = document.querySelector('.scroll'); return e.scrollWidth <= e.clientWidth; }"
        page.wait_for_function(fits, timeout=3000)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.close()


def test_methods_and_counts_are_visible_on_a_phone(browser, tmp_path):
    complete = {sweep: runs_of(sweep, {"ERM": 0.0, "ERM + SWAD": 0.1}, 2) for sweep in (HEART, PACS)}
    _, path = write_evidence(complete, tmp_path, "pogm report results")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())
    scroll, heads = page.locator("figure.table .scroll"), page.locator("figure.table thead th")
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    assert heads.all_text_contents()[:6] == ["Algorithm", "better", "tied", "worse", "datasets", "n"]
    end = heads.nth(5).bounding_box()
    assert end["x"] + end["width"] <= 390 - 16
    method = page.locator("tbody th").first
    before = method.bounding_box()["x"]
    scroll.evaluate("e => { e.scrollLeft = 200; }")
    assert heads.nth(1).bounding_box()["x"] < 0
    assert method.bounding_box()["x"] == before
    page.close()
