"""Accuracy tables (section 10 of the protocol)."""

import csv
import io
import itertools
import json

import pytest
from run_folders import record, write_run

from pogm._system.errors import UsageError
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, oracle_early_stop
from pogm.benchmark.results.table import Estimate
from pogm.benchmark.results.table_formats import tables_csv


def test_dataset_table_has_a_column_per_domain_and_their_mean(write):
    runs = write("ERM", {0: [0.70, 0.72, 0.74], 1: [0.9, 0.9, 0.9]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    assert table.headings == ("A", "B", "Avg")
    assert table.texts() == {"ERM": ["72.0 ± 0.9", "90.0 ± 0.0", "81.0"]}
    assert table.rows[0].estimates[0].stderr == pytest.approx(0.9428, abs=1e-4)


def test_missing_cell_has_a_reason_and_the_average_is_missing_too(write):
    write("ERM", {0: [0.5], 1: [0.5]})
    runs = write("POGM", {0: [None]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    assert table.texts()["POGM"] == ["X (failed)", "X (not run)", "X"]
    assert "Left out: 1 failed." in table.text()


def test_cell_with_fewer_trials_shows_its_n(write):
    write("ERM", {0: [0.5, 0.5], 1: [0.5, 0.5]})
    table = dataset_table(write("POGM", {0: [0.6, None], 1: [0.6, 0.6]}), "Toy", TRAINING_DOMAIN)
    first, _, average = table.rows[1].estimates
    assert (first.n, first.incomplete, table.marks(0, first)) == (1, True, " (n=1) †")
    assert average.incomplete
    assert "† Incomplete" in table.text()
    assert (
        "n = 2 trials, unless a cell says otherwise; ± is the standard error (population deviation / √n); a mean of "
        "one trial has none."
    ) in table.footnotes


def test_a_row_that_chooses_among_fewer_configurations_is_named(tmp_path):
    """The best of more configurations is higher by chance, such as in the report of a sweep that still runs."""

    def note(label, configurations, **options):
        for held_out, hparams_seed in itertools.product(range(2), range(configurations)):
            records = [record(0, [0.5] * 3, [0.5] * 3)]
            write_run(tmp_path, records, label=label, test_domains=(held_out,), hparams_seed=hparams_seed, **options)
        tables = dataset_table(runs := read_runs(tmp_path), "Toy", TRAINING_DOMAIN), averages_table(runs, TEST_DOMAIN)
        return ["".join(line for line in table.footnotes if "Unequal" in line) for table in tables]

    assert note("ERM", 3) == ["", ""]
    assert note("Fish", 3) == ["", ""]
    expected = "Unequal search: fewer than 3 configurations in cells of POGM (1)."
    assert note("POGM", 1) == [expected, expected]
    failed = note("DANN", 3, failure="it failed", done=False)  # counted by another footnote
    assert failed == [expected, expected]


def one_trial(write):
    """Return runs of two algorithms with one trial each."""
    write("ERM", {0: [0.5], 1: [0.5]})
    return write("POGM", {0: [0.6], 1: [0.7]})


def test_one_trial_has_no_standard_error_and_no_best_mark_in_text(write):
    runs = one_trial(write)
    for table in (dataset_table(runs, "Toy", TRAINING_DOMAIN), averages_table(runs, TRAINING_DOMAIN)):
        assert all(not table.best(j) for j in range(len(table.columns)))
        assert "± 0.0" not in table.text()
        assert "*" not in table.text()
        assert "n = 1 trial, so there is no standard error and no best mark." in table.footnotes
    assert dataset_table(runs, "Toy", TRAINING_DOMAIN).texts()["POGM"] == ["60.0", "70.0", "65.0"]


def test_one_trial_has_no_standard_error_in_latex_csv_and_json(write):
    table = dataset_table(one_trial(write), "Toy", TRAINING_DOMAIN)
    assert "ERM & 50.0 & 50.0 & 50.0" in table.latex()
    assert "textbf" not in table.latex()
    assert "Toy,ERM,training-domain,A,50.0000,,1\n" in table.csv()
    assert json.loads(table.json())["rows"]["ERM"]["A"] == {
        "mean": 50.0,
        "stderr": None,
        "n": 1,
        "reason": "",
        "incomplete": False,
    }


def test_cell_with_one_trial_is_never_marked_best(write):
    write("ERM", {0: [0.5, 0.5], 1: [0.5, 0.5]})
    table = dataset_table(write("POGM", {0: [0.6], 1: [0.4, 0.4]}), "Toy", TRAINING_DOMAIN)
    assert [table.best(j) for j in range(2)] == [frozenset(), {0}]
    assert table.texts()["POGM"][0] == "60.0"


def test_averages_table_has_the_error_over_trials_of_the_mean_over_domains(write):
    runs = write("ERM", {0: [0.6, 0.8], 1: [0.8, 0.6]})
    assert averages_table(runs, TRAINING_DOMAIN).texts() == {"ERM": ["70.0 ± 0.0", "70.0"]}


def test_averages_table_marks_a_mean_over_too_few_domains(write):
    table = averages_table(write("ERM", {0: [0.6, 0.6], 1: [0.8]}), TRAINING_DOMAIN)
    cell = table.rows[0].estimates[0]
    assert (table.texts()["ERM"][0], cell.n, cell.incomplete) == ("65.0 ± 3.5", 2, True)


def test_averages_table_shows_what_was_not_run(write):
    write("ERM", {0: [0.6, 0.6], 1: [0.6, 0.6]})
    runs = write("POGM", {0: [0.6], 1: [0.6]}, dataset="Other")
    table = averages_table(runs, TRAINING_DOMAIN)
    assert table.headings == ("Other", "Toy", "Avg")
    assert table.texts() == {"ERM": ["X (not run)", "60.0 ± 0.0", "X"], "POGM": ["60.0", "X (not run)", "X"]}


def test_best_of_a_column_is_marked_with_ties_but_not_in_a_table_of_one_row(write):
    runs = write("ERM", {0: [0.6, 0.6], 1: [0.6, 0.6]})
    assert dataset_table(runs, "Toy", TRAINING_DOMAIN).best(0) == frozenset()
    table = dataset_table(write("POGM", {0: [0.6, 0.6], 1: [0.7, 0.7]}), "Toy", TRAINING_DOMAIN)
    assert [table.best(j) for j in range(3)] == [{0, 1}, {1}, {1}]


def test_text_is_aligned_and_has_the_selection_rule(write):
    write("ERM", {0: [0.70, 0.72, 0.74], 1: [1.0, 1.0, 1.0]})
    runs = write("POGM + Mixup", {0: [0.8, 0.8, 0.8], 1: [0.9, 0.9, 0.9]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    title, _, head, _, erm, pogm, *rest = table.text().splitlines()
    assert title == "Toy"
    assert erm == "ERM           72.0 ± 0.9   100.0 ± 0.0*  86.0*"
    assert pogm == "POGM + Mixup  80.0 ± 0.0*   90.0 ± 0.0   85.0"
    assert [head.index(name) for name in ("A", "B", "Avg")] == [23, 37, 42]
    assert rest[1].startswith("Training-domain validation. The run and step")
    assert "n = 3 trials; ± is the standard error (population deviation / √n)." in " ".join(rest)


def test_control_characters_in_the_name_of_a_domain_do_not_break_the_text(write):
    table = dataset_table(write("ERM", {0: [0.5]}, domains=("a\n\x1b[31m", "b")), "Toy", TRAINING_DOMAIN)
    assert "a\\n\\x1b[31m" in table.text()
    assert "\x1b" not in table.text()


def test_csv_has_one_line_per_cell_and_quotes_commas(write):
    runs = write("ERM", {0: [0.70, 0.72, 0.74]}, domains=("A, or so", "B"))
    lines = list(csv.DictReader(io.StringIO(dataset_table(runs, "Toy", TRAINING_DOMAIN).csv())))
    assert list(lines[0]) == ["dataset", "algorithm", "selection", "domain", "mean", "stderr", "n"]
    assert list(lines[0].values()) == ["Toy", "ERM", "training-domain", "A, or so", "72.0000", "0.9428", "3"]
    assert [(line["domain"], line["mean"], line["n"]) for line in lines[1:]] == [
        ("B", "", "0"),
        ("Avg", "", "0"),
    ]


def test_csv_of_several_tables_has_one_line_per_key(write):
    """The average of a dataset is in its own table and, with a standard error, in the table of all datasets."""
    write("ERM", {0: [0.70, 0.72], 1: [0.9, 0.9]})
    runs = write("ERM", {0: [0.5, 0.6], 1: [0.5, 0.6]}, dataset="Other")
    tables = [dataset_table(runs, name, TRAINING_DOMAIN) for name in ("Toy", "Other")]
    averages = averages_table(runs, TRAINING_DOMAIN)
    for order in ([*tables, averages], [averages, *tables]):
        lines = list(csv.DictReader(io.StringIO(tables_csv(order))))
        by_key = {(line["dataset"], line["algorithm"], line["selection"], line["domain"]): line for line in lines}
        assert len(by_key) == len(lines) == 2 * 3 + 1
        average = by_key["Toy", "ERM", "training-domain", "Avg"]
        assert (average["mean"], average["stderr"], average["n"]) == ("80.5000", "0.3536", "2")
        assert by_key["Averages", "ERM", "training-domain", "Avg"]["stderr"] == ""


def test_early_stopped_oracle_is_never_written_beside_other_selections(write):
    runs = write("ERM", {0: [0.5], 1: [0.5]})
    plain, oracle, early = (
        dataset_table(runs, "Toy", selection) for selection in (TRAINING_DOMAIN, TEST_DOMAIN, oracle_early_stop(-1))
    )
    assert tables_csv([plain, oracle]).count("dataset,") == 1
    with pytest.raises(UsageError, match="file of its own"):
        tables_csv([oracle, early])


def test_json_has_the_numbers_and_the_selection(write):
    table = json.loads(dataset_table(write("ERM", {0: [0.7], 1: [0.7]}), "Toy", TEST_DOMAIN).json())
    assert table["selection"]["name"] == "test-domain"
    assert table["columns"] == ["A", "B", "Avg"]
    assert table["rows"]["ERM"]["A"]["n"] == 1


def test_latex_escapes_names_and_sets_the_best_in_bold(write):
    write("A&B_50%", {0: [0.5, 0.5], 1: [0.5, 0.5]}, domains=("+90%", "−90%"))
    latex = dataset_table(write("POGM", {0: [0.6, 0.6]}, domains=("+90%", "−90%")), "Toy", TRAINING_DOMAIN).latex()
    assert r"A\&B\_50\% & 50.0 $\pm$ 0.0" in latex
    assert r"+90\% & $-$90\%" in latex
    assert r"\textbf{60.0 $\pm$ 0.0}" in latex


def test_runs_with_different_domains_of_a_dataset_are_refused(write):
    write("ERM", {0: [0.5]})
    runs = write("POGM", {0: [0.5]}, domains=("A", "Z"))
    with pytest.raises(UsageError, match="agree on the domains"):
        dataset_table(runs, "Toy", TRAINING_DOMAIN)


def test_missing_estimate_is_printed_with_its_reason(write):
    column = dataset_table(write("ERM", {0: [0.5]}), "Toy", TRAINING_DOMAIN).columns[0]
    assert column.text(Estimate(reason="failed")) == "X (failed)"
    assert column.text(Estimate(50.04)) == "50.0"
