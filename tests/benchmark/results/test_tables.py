"""Section 10 of the protocol: what a cell and a row say."""

import csv
import io
import json
from dataclasses import replace

import pytest

from pogm._system.errors import UsageError
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, oracle_early_stop
from pogm.benchmark.results.tables import (
    Cell,
    averages_table,
    dataset_table,
    mean_and_error,
    tables_csv,
)


def test_mean_and_error_of_section_16():
    cell = mean_and_error((0.70, 0.72, 0.74))
    assert str(cell) == "72.0 ± 0.9"
    assert cell.stderr == pytest.approx(0.9428, abs=1e-4)
    assert cell.n == 3


def test_one_trial_has_no_error():
    assert str(mean_and_error([0.5])) == "50.0 ± 0.0"


def rows(table):
    return {label: [str(cell) for cell in cells] for label, cells in zip(table.rows, table.cells, strict=True)}


def test_a_dataset_table_has_a_column_per_domain_and_their_plain_mean(write):
    runs = write("ERM", {0: [0.70, 0.72, 0.74], 1: [0.9, 0.9, 0.9]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    assert table.columns == ("A", "B", "Avg")
    assert rows(table) == {"ERM": ["72.0 ± 0.9", "90.0 ± 0.0", "81.0"]}


def test_a_missing_cell_says_why_and_takes_the_average_with_it(write):
    write("ERM", {0: [0.5], 1: [0.5]})
    runs = write("POGM", {0: [None]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    assert rows(table)["POGM"] == ["X (failed)", "X (not run)", "X"]
    assert "Left out: 1 failed." in table.text()


def test_a_cell_with_fewer_trials_says_so(write):
    write("ERM", {0: [0.5, 0.5], 1: [0.5, 0.5]})
    table = dataset_table(write("POGM", {0: [0.6, None], 1: [0.6, 0.6]}), "Toy", TRAINING_DOMAIN)
    first = table.cells[1][0]
    assert (first.n, first.incomplete, table.marks(first)) == (1, True, " (n=1) †")
    assert table.cells[1][-1].incomplete
    assert "† Incomplete" in table.text()


def test_the_averages_table_takes_the_error_over_trials_of_the_mean_over_domains(write):
    runs = write("ERM", {0: [0.6, 0.8], 1: [0.8, 0.6]})
    assert rows(averages_table(runs, TRAINING_DOMAIN)) == {"ERM": ["70.0 ± 0.0", "70.0"]}


def test_the_averages_table_marks_a_mean_over_too_few_domains(write):
    runs = write("ERM", {0: [0.6, 0.6], 1: [0.8]})
    cell = averages_table(runs, TRAINING_DOMAIN).cells[0][0]
    assert (str(cell), cell.n, cell.incomplete) == ("65.0 ± 3.5", 2, True)


def test_the_averages_table_knows_what_was_not_run(write):
    write("ERM", {0: [0.6], 1: [0.6]})
    runs = write("POGM", {0: [0.6], 1: [0.6]}, dataset="Other")
    table = averages_table(runs, TRAINING_DOMAIN)
    assert table.columns == ("Other", "Toy", "Avg")
    assert rows(table) == {
        "ERM": ["X (not run)", "60.0 ± 0.0", "X"],
        "POGM": ["60.0 ± 0.0", "X (not run)", "X"],
    }


def test_the_best_of_a_column_is_marked_ties_too_unless_it_is_alone(write):
    runs = write("ERM", {0: [0.6], 1: [0.6]})
    assert dataset_table(runs, "Toy", TRAINING_DOMAIN).best(0) == frozenset()
    table = dataset_table(write("POGM", {0: [0.6], 1: [0.7]}), "Toy", TRAINING_DOMAIN)
    assert [table.best(j) for j in range(3)] == [{0, 1}, {1}, {1}]


def test_text_is_aligned_and_names_the_rule_beneath(write):
    write("ERM", {0: [0.70, 0.72, 0.74], 1: [1.0, 1.0, 1.0]})
    runs = write("POGM + Mixup", {0: [0.8, 0.8, 0.8], 1: [0.9, 0.9, 0.9]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    title, _, head, _, erm, pogm, *rest = table.text().splitlines()
    assert title == "Toy"
    assert erm == "ERM           72.0 ± 0.9   100.0 ± 0.0*  86.0*"
    assert pogm == "POGM + Mixup  80.0 ± 0.0*   90.0 ± 0.0   85.0"
    assert [head.index(name) for name in ("A", "B", "Avg")] == [23, 37, 42]
    assert rest[1].startswith("Training-domain validation. The run and step")
    assert "n = 3 trials; ± is the standard error." in rest


def test_text_keeps_its_lines_whatever_a_domain_is_called(write):
    table = dataset_table(write("ERM", {0: [0.5]}, domains=("a\n\x1b[31m", "b")), "Toy", TRAINING_DOMAIN)
    assert "a\\n\\x1b[31m" in table.text()
    assert "\x1b" not in table.text()


def test_csv_has_one_line_per_cell_and_survives_commas(write):
    runs = write("ERM", {0: [0.70, 0.72, 0.74]}, domains=("A, or so", "B"))
    lines = list(csv.DictReader(io.StringIO(dataset_table(runs, "Toy", TRAINING_DOMAIN).csv())))
    assert list(lines[0]) == ["dataset", "algorithm", "selection", "domain", "mean", "stderr", "n"]
    assert list(lines[0].values()) == ["Toy", "ERM", "training-domain", "A, or so", "72.0000", "0.9428", "3"]
    assert [(line["domain"], line["mean"], line["n"]) for line in lines[1:]] == [
        ("B", "", "0"),
        ("Avg", "", "0"),
    ]


def test_the_early_stopped_oracle_is_never_written_beside_the_others(write):
    runs = write("ERM", {0: [0.5], 1: [0.5]})
    plain, oracle, early = (
        dataset_table(runs, "Toy", selection) for selection in (TRAINING_DOMAIN, TEST_DOMAIN, oracle_early_stop(-1))
    )
    assert tables_csv([plain, oracle]).count("dataset,") == 1
    with pytest.raises(UsageError, match="file of its own"):
        tables_csv([oracle, early])


def test_json_holds_the_numbers_and_the_rule(write):
    table = json.loads(dataset_table(write("ERM", {0: [0.7], 1: [0.7]}), "Toy", TEST_DOMAIN).json())
    assert table["selection"]["name"] == "test-domain"
    assert table["rows"]["ERM"]["A"]["n"] == 1


def test_latex_escapes_names_and_sets_the_best_in_bold(write):
    write("A&B_50%", {0: [0.5], 1: [0.5]}, domains=("+90%", "−90%"))
    latex = dataset_table(write("POGM", {0: [0.6]}, domains=("+90%", "−90%")), "Toy", TRAINING_DOMAIN).latex()
    assert r"A\&B\_50\% & 50.0 $\pm$ 0.0" in latex
    assert r"+90\% & $-$90\%" in latex
    assert r"\textbf{60.0 $\pm$ 0.0}" in latex


def test_runs_that_disagree_on_the_domains_of_a_dataset_share_no_table(write):
    write("ERM", {0: [0.5]})
    runs = write("POGM", {0: [0.5]}, domains=("A", "Z"))
    with pytest.raises(UsageError, match="agree on the domains"):
        dataset_table(runs, "Toy", TRAINING_DOMAIN)


def test_a_cell_prints_its_reason():
    assert str(Cell(reason="failed")) == "X (failed)"
    assert str(replace(Cell(), mean=50.04)) == "50.0"
