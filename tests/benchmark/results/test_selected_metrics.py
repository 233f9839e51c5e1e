"""Metrics of selected models in tables: known values, the number of test images in every format, and old runs."""

import csv
import io
import json
import re

import pytest
from run_folders import metrics_of

from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.model_metrics import confusions, selected_metrics_table
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.benchmark.results.table_formats import tables_csv
from pogm.cli.tables import show_tables
from pogm.report.page import render_table

GOOD = [(0, 0), (0, 0), (0, 0), (1, 1)]
BAD = [(0, 0), (0, 0), (0, 0), (1, 0)]


@pytest.fixture
def two_trials(make_run, make_record, tmp_path):
    """Two trials of ERM that hold out A, and one old run that holds out B."""
    for seed, answers in enumerate((GOOD, BAD)):
        make_run([make_record(0, [0.5] * 3, [0.5] * 3)], trial_seed=seed, metrics=metrics_of("A", answers))
    make_run([make_record(0, [0.5] * 3, [0.5] * 3)], test_domains=[1])
    return read_runs(tmp_path)


def test_table_has_means_over_trials(two_trials):
    table = selected_metrics_table(two_trials, "Toy")
    (row,) = json.loads(table.json())["rows"]
    assert (row["algorithm"], row["held_out"], row["test_images"]) == ("ERM", "A", 4)
    # Recalls are 1 and 1, then 1 and 0; F1 is 1 and 1, then 6/7 and 0; confidence is 1, then softmax(50 / 20).
    assert (row["balanced_accuracy"]["mean"], row["balanced_accuracy"]["n"]) == (75.0, 2)
    assert row["macro_f1"]["mean"] == pytest.approx(100 * (1 + 3 / 7) / 2)
    assert row["auroc"]["mean"] == pytest.approx(75.0)
    assert row["ece"]["mean"] == pytest.approx(100 * (0 + 1 / 4) / 2)
    confidence = 1 / (1 + 2.718281828459045**-2.5)
    assert row["ece_scaled"]["mean"] == pytest.approx(100 * (1 - confidence + confidence - 0.75) / 2)
    assert "75.0 ± 17.7" in table.text()
    assert "n = 2 trials." in table.text()
    assert table.selection is TRAINING_DOMAIN


def test_only_the_metrics_of_the_chosen_step_are_shown(make_run, make_record, tmp_path):
    records = [make_record(0, [0.5] * 3, [0.5] * 3), make_record(10, [0.6] * 3, [0.6] * 3)]
    make_run(records, metrics=metrics_of("A", GOOD, step=0))
    runs = read_runs(tmp_path)
    assert TRAINING_DOMAIN(runs)[0].step == 10
    assert selected_metrics_table(runs, "Toy") is None
    assert confusions(runs, "Toy") == []
    assert dataset_table(runs, "Toy", TRAINING_DOMAIN).columns[0].test_images == 4  # the same at every step


def test_every_format_has_the_number_of_test_images(two_trials):
    for selection in (TRAINING_DOMAIN, TEST_DOMAIN):
        table = dataset_table(two_trials, "Toy", selection)
        assert [column.test_images for column in table.columns] == [4, None, None, None]
        (line,) = [line for line in table.text().splitlines() if line.startswith("Test samples")]
        assert line.split() == ["Test", "samples", "4"]
        assert json.loads(table.json())["test_images"] == {"A": 4}
        assert r"\midrule" + "\n" + r"Test samples & 4 &  &  &  \\" in table.latex()
        assert '<tfoot><tr><th scope="row">Test samples</th><td>4</td><td></td>' in render_table(table, "anchor")
        lines = list(csv.DictReader(io.StringIO(table.csv())))
        assert [(line["domain"], line["test_images"]) for line in lines] == [
            *(("A", "4"), ("B", ""), ("C", ""), ("Avg", ""))
        ]


def test_old_runs_have_the_tables_that_they_had(write):
    runs = write("ERM", {0: [0.5], 1: [0.6]})
    table = dataset_table(runs, "Toy", TRAINING_DOMAIN)
    shown = [table.text(), table.csv(), table.json(), table.latex(), render_table(table, "anchor")]
    assert not any(re.search("test.images", text, re.IGNORECASE) for text in shown)
    assert selected_metrics_table(runs, "Toy") is None


def test_tables_of_old_and_new_runs_share_one_csv(make_run, make_record, tmp_path, capsys):
    line = [make_record(0, [0.5] * 2, [0.5] * 2)]
    for domain, name in enumerate("AB"):
        make_run(line, domains=("A", "B"), test_domains=[domain], metrics=metrics_of(name, GOOD + domain * BAD))
        make_run(line, domains=("A", "B"), test_domains=[domain], dataset="Old")
    runs = read_runs(tmp_path)
    averages = averages_table(runs, TRAINING_DOMAIN)
    tables = [*(dataset_table(runs, name, TRAINING_DOMAIN) for name in ("Toy", "Old")), averages]
    lines = list(csv.DictReader(io.StringIO(tables_csv(tables))))
    found = {(line["dataset"], line["domain"]): line["test_images"] for line in lines}
    assert (found["Toy", "A"], found["Toy", "B"], found["Old", "A"]) == ("4", "8", "")
    assert (found["Toy", "Avg"], found["Old", "Avg"]) == ("12", "")  # all held-out domains together
    show_tables(runs, "csv")
    assert capsys.readouterr().out.startswith("dataset,algorithm,selection,domain,mean,stderr,n,test_images\n")
    show_tables(runs, "text", selections=(TRAINING_DOMAIN,))
    assert "Toy: metrics of the selected models" in capsys.readouterr().out
    show_tables(runs, "text", selections=(TEST_DOMAIN,))
    assert "metrics of the selected models" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"selection": {"step": "no"}}', '{"domains": 3}'])
def test_a_damaged_file_is_left_out_with_a_warning(make_run, make_record, tmp_path, content):
    folder = make_run([make_record(0, [0.5] * 3, [0.5] * 3)])
    (folder / "metrics.json").write_text(content)
    with pytest.warns(RecordWarning, match="metrics left out"):
        table = dataset_table(read_runs(tmp_path), "Toy", TRAINING_DOMAIN)
    assert table.test_images == ()
    assert table.rows[0].cells[0].mean == 50.0


def test_confusion_matrices_are_summed_over_trials(two_trials):
    (found,) = confusions(two_trials, "Toy")
    assert (found.label, found.domain, found.counts.tolist()) == ("ERM", "A", [[6, 0], [1, 1]])
