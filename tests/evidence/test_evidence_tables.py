"""Tables of an evidence sweep: differences and their intervals, costs, variance between seeds, published results."""

import math
from dataclasses import replace

import pytest
from evidence_runs import COLORED, HEART, PACS, run_of, runs_of
from run_folders import record

from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.evidence.tables import evidence_table, published_table, run_costs, seed_table


def test_marks_do_not_depend_on_the_number_of_complete_rows():
    """Bonferroni's m is that of the protocol."""
    few, more = (runs_of(HEART, dict.fromkeys(rows, 0.01)) for rows in (("ERM", "Fish"), ("ERM", "Fish", "IRM", "SD")))
    intervals = [evidence_table(HEART, runs).rows[1].cells[2] for runs in (few, more)]
    assert intervals[0] == intervals[1]
    assert evidence_table(replace(HEART, comparisons=1), few).rows[1].cells[2] != intervals[0]


def test_rows_with_fewer_than_five_seeds_have_a_difference_but_no_test():
    runs = runs_of(PACS, {"ERM": 0.0, "Fish": 0.1}, 5) + runs_of(PACS, {"CORAL": 0.1, "Reptile": 0.1}, 4)
    cells = {row.key: row.cells for row in evidence_table(PACS, runs).rows}
    assert cells["Fish"][2].endswith("≠")
    for label in ("CORAL", "Reptile"):
        difference, interval, detectable, *_, last_difference, last_interval, n = cells[label][1:8]
        assert difference.mean == last_difference.mean == pytest.approx(10.15)
        assert difference.stderr > 0
        assert (interval, last_interval, n) == ("–", "–", 4)
        assert math.isnan(detectable)


def test_differences_are_of_the_seeds_that_both_rows_have():
    runs = runs_of(PACS, {"ERM": 0.0}, 3) + runs_of(PACS, {"Fish": 0.0}, 4)
    (cell,) = (row.cells[7] for row in evidence_table(PACS, runs).rows if row.key == "Fish")
    assert cell == 3


def test_seed_table_has_the_standard_deviation_over_seeds():
    runs = runs_of(HEART, {"ERM": 0.0})
    runs[0] = run_of(HEART, "ERM", 0, 0, 0.3)  # 30, 71, 72, 73, 74 % on the first domain
    (row,) = seed_table(runs).rows
    assert row.cells[0] == pytest.approx(5.70, abs=0.01)  # of 60, 71, 72, 73, 74
    assert row.cells[1:] == (pytest.approx(19.04, abs=0.01), "cleveland", "30.0 … 74.0", 5)


def test_time_of_runs_that_trained_as_one_batch_is_shared():
    """Trials of one batch have the same seconds per step to the last digit. A CPU has no GPU memory."""
    runs = [
        replace(
            run, records=(*run.records, record(200, [0.7] * 4, [0.5] * 4, seconds_per_step=0.1 if n < 4 else 0.2 + n))
        )
        for n, run in enumerate(runs_of(HEART, {"ERM": 0.0}))
    ]
    seconds, memory = run_costs(runs[:4])["ERM"]
    assert seconds == pytest.approx(0.1 * 201 / 4)
    assert math.isnan(memory)
    assert run_costs(runs[4:5])["ERM"][0] == pytest.approx(4.2 * 201)


def test_table_of_published_results_has_the_rows_that_a_publication_has():
    runs = runs_of(COLORED, {"ERM": 0.0, "Fish": 0.01, "POGM, ERM centre, κ = 0": 0.0})
    table = published_table(COLORED.complete_rows(runs), TEST_DOMAIN)
    assert [column.key for column in table.columns] == ["ours", "DomainBed (2020)", "paper, Table 1"]
    assert {row: texts[1:] for row, texts in table.texts().items()} == {
        "ERM": ["57.8 ± 0.2", "57.8 ± 0.2"],
        "Fish": ["–", "61.8 ± 0.8"],
    }
    table = published_table(COLORED.complete_rows(runs), TRAINING_DOMAIN)
    assert [row[1:] for row in table.texts().values()] == [["51.5 ± 0.1"]]
