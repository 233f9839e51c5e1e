"""Tables of synthetic runs, compared with numbers computed by hand."""

import csv
import io
from dataclasses import replace

import pytest
from run_folders import record

from pogm.benchmark.results.comparison import Comparison
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.table import Table
from pogm.benchmark.results.table_formats import tables_csv
from pogm.experiments import ablation, inner_optimizer, kappa, table1, table2, table3, table5
from pogm.experiments.base import SCALES, Row
from pogm.experiments.output import label_runs

EMBEDDED = SCALES["embedded"]


@pytest.fixture
def synthetic(make_run, tmp_path):
    """Runs of a dataset with two domains, by label, held-out domain and trial: accuracies after the last step."""

    def make(label, accuracies, dataset="Toy", validation=None, **settings):
        for domain, values in enumerate(accuracies):
            for seed, value in enumerate(values):
                inside = [value, value]
                outside = inside if validation is None else [validation, validation]
                make_run(
                    [record(0, inside, outside)],
                    label=label,
                    dataset=dataset,
                    domains=("A", "B"),
                    test_domains=[domain],
                    trial_seed=seed,
                    **settings,
                )
        return read_runs(tmp_path)

    return make


def row(table, name):
    return dict(zip(table.headings, table.texts()[name], strict=True))


def in_order(runs, *labels):
    """Return runs sorted by row, as `pogm experiment` passes them."""
    return sorted(runs, key=lambda run: labels.index(run.label))


def two_datasets(synthetic):
    synthetic("ERM", [[0.5, 0.7], [0.8, 0.8]], "First")
    synthetic("ERM", [[0.5], [0.5]], "Second")
    synthetic("AND-mask", [[0.9, 0.9], [0.9, 0.9]], "First")
    synthetic("AND-mask", [[0.9], [0.9]], "Second")
    synthetic("CIRL", [[0.4, 0.4], [0.4, 0.4]], "First")
    return synthetic("CIRL", [[0.6], [0.6]], "Second")


def test_table_1_has_averages_and_ranks_under_both_selections(synthetic):
    runs = in_order(two_datasets(synthetic), "ERM", "AND-mask", "CIRL")
    oracle, training, *details = table1.exhibits(runs, EMBEDDED)
    assert [oracle.selection.name, training.selection.name] == ["test-domain", "training-domain"]
    assert oracle.labels == ("ERM", "AND-mask", "CIRL")
    ranks = ("Rank, arithmetic mean", "Rank, geometric mean", "Rank, median")
    paper = ("Paper, arithmetic", "Paper, geometric", "Paper, median")
    assert training.headings == ("First", "Second", "Avg", *ranks), "the paper ranks under test-domain validation"
    assert oracle.headings == ("First", "Second", "Avg", *ranks, *paper)
    # Over trials: (50 + 80)/2 = 65 and (70 + 80)/2 = 75. Ranks 2 and 3: their means are 2.5 and √6.
    ours = ("70.0 ± 3.5", "50.0", "60.0", "2.5", "2.4", "2.5")
    assert row(oracle, "ERM") == dict(zip(oracle.headings, (*ours, "9.0", "8.0", "10.0"), strict=True))
    assert [row(oracle, "AND-mask")[name] for name in paper] == ["13.0", "12.7", "13.0"]
    assert oracle.best(3) == oracle.best(0) == {1}, "highest accuracy and lowest rank"
    assert oracle.trials == 2, "two datasets make two ranks, but not two trials"
    assert [table.title for table in details] == ["First", "First", "Second", "Second"]
    assert "paper's rank, median" in oracle.csv()


def test_control_rows_have_no_rank_and_change_none(synthetic):
    order = ("ERM", "AND-mask", "CIRL", "Control")
    alone = table1.exhibits(in_order(two_datasets(synthetic), *order), EMBEDDED)[0]
    synthetic("Control", [[0.99], [0.99]], "First")
    runs = in_order(synthetic("Control", [[0.99], [0.99]], "Second"), *order)
    table = table1.exhibits(runs, EMBEDDED)[0]
    assert table.labels == order
    for name in alone.labels:
        assert row(table, name) == row(alone, name)
    assert row(table, "Control")["Rank, median"] == row(table, "Control")["Paper, median"] == "X"
    assert any("do not change the ranks" in note for note in table.footnotes)
    assert not any("do not change the ranks" in note for note in alone.footnotes)


def test_rows_with_the_same_algorithm_differ_by_their_settings(tmp_path):
    plan = table1.plan(replace(EMBEDDED, datasets=("ColoredDigits",), trials=1))
    matched, unmatched = Row("POGM"), Row("POGM", settings=("kappa=0",))
    assert unmatched.name == "POGM, kappa = 0"
    assert {trial.algorithm.kappa for trial in plan[unmatched]} == {0.0} != {t.algorithm.kappa for t in plan[matched]}
    table = table1.exhibits(label_runs(plan, {}, tmp_path), EMBEDDED)[0]
    assert table.labels == tuple(found.name for found in plan)
    assert {trial.seed for trial in plan[matched]} == {trial.seed for trial in plan[unmatched]}


def test_no_ranks_for_one_dataset_or_without_a_number(synthetic, make_run, tmp_path):
    synthetic("ERM", [[0.5], [0.5]])
    make_run([], label="Fish", dataset="Toy", domains=("A", "B"), test_domains=[0], done=False, failure="no memory")
    only = table1.exhibits(read_runs(tmp_path), EMBEDDED)[0]
    assert only.headings == ("Toy", "Avg")
    synthetic("ERM", [[0.5], [0.5]], "Second")
    both = table1.exhibits(read_runs(tmp_path), EMBEDDED)[0]
    assert row(both, "Fish")["Rank, median"] == "X (not ranked)"


def test_failed_run_is_a_missing_cell_with_a_reason(synthetic, make_run, tmp_path):
    synthetic("ERM", [[0.5], [0.5]])
    failed = {"label": "POGM", "dataset": "Toy", "domains": ("A", "B"), "done": False}
    make_run([], test_domains=[0], failure="Traceback\n  ...\nMemoryError: 3 GB", **failed)
    make_run([record(0, [0.8, 0.8], [0.8, 0.8])], test_domains=[1], **failed | {"done": True})
    averages, _, domains, _ = table1.exhibits(read_runs(tmp_path), EMBEDDED)
    assert row(domains, "POGM") == {"A": "X (failed)", "B": "80.0", "Avg": "X"}
    for table in (averages, domains):
        assert "Failed: POGM on Toy, held out A, trial 0: MemoryError: 3 GB" in table.text()
        assert "Failed: POGM on Toy, held out A, trial 0: MemoryError: 3 GB" in table.latex()


def test_failures_beyond_five_are_counted(make_run, tmp_path):
    for seed in range(7):
        make_run([], domains=("A", "B"), test_domains=[0], trial_seed=seed, done=False, failure="no disk")
    notes = table1.exhibits(read_runs(tmp_path), EMBEDDED)[0].footnotes
    assert sum("no disk" in note for note in notes) == 5
    assert "2 more runs failed." in notes


def test_missing_run_is_a_missing_cell(tmp_path):
    planned = {row: trials for row, trials in table1.plan(EMBEDDED).items() if row.name in ("ERM", "ITTA")}
    table = table1.exhibits(label_runs(planned, {}, tmp_path), EMBEDDED)[0]
    assert table.labels == ("ERM", "ITTA")
    assert table.empty
    assert "X (unfinished)" in table.text()


def test_table_2_names_its_rows_and_explains_its_third_column(synthetic):
    synthetic("POGM + data augmentation", [[0.9], [0.7]])
    runs = in_order(synthetic("POGM", [[0.6], [0.8]]), "POGM", "POGM + data augmentation")
    oracle, *_ = table2.exhibits(runs, EMBEDDED)
    assert oracle.labels == ("POGM", "POGM + data augmentation")
    assert row(oracle, "POGM + data augmentation")["Toy"] == "80.0"
    assert any("OfficeHome" in note for note in oracle.footnotes)
    assert any("nothing is selected" in note for note in oracle.footnotes), "of one configuration"


def test_table_2_is_compared_with_the_paper(make_run, tmp_path):
    for label, value in (("POGM", 0.6), ("POGM + data augmentation", 0.7)):
        for domain in range(3):
            line = record(0, [value] * 3, [value] * 3)
            make_run([line], label=label, dataset="ColoredMNIST", domains=("+", "±", "-"), test_domains=[domain])
    exhibits = table2.exhibits(read_runs(tmp_path), SCALES["mnist"])
    (beside,) = [exhibit for exhibit in exhibits if isinstance(exhibit, Comparison)]
    assert beside.selection.name == "test-domain"
    pairs = {pair.algorithm: (pair.theirs.mean, round(pair.difference, 1)) for pair in beside.pairs}
    assert pairs == {"POGM": (66.3, -6.3), "POGM + Augment": (67.1, 2.9)}


@pytest.fixture
def search(make_run, tmp_path):
    """Three configurations of POGM: on two domains, accuracies for choosing (out) and for reporting (in)."""
    drawn = [(0.5, 0.1, 0.60, 0.50), (0.5, 0.5, 0.70, 0.40), (0.05, 0.1, 0.90, 0.80)]
    for number, (meta_lr, radius, outside, inside) in enumerate(drawn):
        for domain in range(2):
            make_run(
                [record(0, [inside] * 2, [outside] * 2)],
                label="POGM",
                domains=("A", "B"),
                test_domains=[domain],
                hparams_seed=number,
                meta_lr=meta_lr,
                kappa=radius,
            )
    return read_runs(tmp_path)


def test_ablation_selects_among_the_runs_with_the_same_value(search):
    oracle, training, *_ = table3.exhibits(search, EMBEDDED)
    assert oracle.labels == training.labels == ("α = 0.05", "α = 0.5")
    # Of the two configurations with α = 0.5, the second validates better, and tests worse.
    assert [row(oracle, name)["Toy"] for name in oracle.labels] == ["80.0", "40.0"]
    other, *_ = table5.exhibits(search, EMBEDDED)
    assert {name: row(other, name)["Toy"] for name in other.labels} == {"κ = 0.1": "80.0", "κ = 0.5": "40.0"}
    assert not any("nothing is selected" in note for note in oracle.footnotes)
    assert "Of 3 configurations in 1 trial: 1 with α = 0.05, 2 with α = 0.5." in oracle.footnotes


@pytest.mark.parametrize("setting", ["meta_lr", "inner_steps", "kappa"])
def test_every_run_of_the_search_has_one_value_of_a_setting(setting, tmp_path):
    runs = label_runs(ablation.search(EMBEDDED), {}, tmp_path)
    parts = ablation.split(runs, setting, "value")
    assert sorted(run.id for run in parts) == sorted(run.id for run in runs)
    assert len({run.label for run in parts}) >= 3
    for run in parts:
        assert run.label.removeprefix(f"{run.trial['algorithm']['name']}, ") == (
            f"value = {run.trial['algorithm'][setting]:g}"
        )


def test_ablations_are_compared_with_the_paper(make_run, tmp_path):
    for domain in range(3):
        line = record(0, [0.5] * 3, [0.5] * 3)
        make_run(
            [line], label="POGM", dataset="ColoredMNIST", domains=("+", "±", "-"), test_domains=[domain], kappa=0.5
        )
    exhibits = table5.exhibits(read_runs(tmp_path), SCALES["mnist"])
    names = {exhibit.selection.name for exhibit in exhibits if isinstance(exhibit, Comparison)}
    assert names == {"test-domain", "training-domain"}
    labels = {pair.algorithm for exhibit in exhibits if isinstance(exhibit, Comparison) for pair in exhibit.pairs}
    assert labels == {"POGM, kappa = 0.5"}


@pytest.mark.parametrize("algorithm", ["POGM", "OfficialPOGM"])
@pytest.mark.parametrize("selection", ["test-domain", "training-domain"])
def test_table_3_compares_005_with_the_row_001_of_the_paper_and_with_the_log(make_run, tmp_path, selection, algorithm):
    for domain in range(3):
        line = record(0, [0.5] * 3, [0.5] * 3)
        facts = {"label": algorithm, "dataset": "ColoredMNIST", "domains": ("+", "±", "-"), "test_domains": [domain]}
        make_run([line], meta_lr=0.05, **facts)
    exhibits = table3.exhibits(read_runs(tmp_path), SCALES["mnist"])
    beside = [found for found in exhibits if isinstance(found, Comparison) and found.selection.name == selection]
    theirs = {found.source.name: (found.pairs[0].theirs.mean, found.pairs[0].theirs.stderr) for found in beside}
    printed, logged = {
        "test-domain": ((65.2, 0.9), (62.029, 1.345)),
        "training-domain": ((51.7, 0.2), (51.657, 0.170)),
    }[selection]
    assert theirs == {"paper": printed, "official-log": logged}
    assert all([pair.algorithm for pair in found.pairs] == [f"{algorithm}, meta_lr = 0.05"] for found in beside)
    assert "is compared with the row that the paper prints as 0.01" in " ".join(beside[0].text().split())


def test_inner_optimizer_table_has_the_last_step_on_the_held_out_domains(tmp_path):
    runs = []
    for run in label_runs(inner_optimizer.plan(EMBEDDED), {}, tmp_path):
        last = 0.5 + 0.1 * run.trial_seed
        records = (record(0, [0.9] * 6, [0.9] * 6), record(300, [last] * 6, [0.1] * 6))
        runs.append(replace(run, records=records, done=True))
    (table,) = inner_optimizer.exhibits(runs, EMBEDDED)
    assert isinstance(table, Table)
    assert table.labels == tuple(row.name for row in inner_optimizer.ROWS)
    # 50, 60 and 70: the population deviation is √(200/3), over √3.
    assert row(table, table.labels[0]) == {"0": "60.0 ± 4.7", "30": "60.0 ± 4.7", "75": "60.0 ± 4.7", "Avg": "60.0"}
    assert inner_optimizer.exhibits([], SCALES["full"]) == []


def test_csv_of_the_kappa_experiment_has_one_line_per_key(synthetic):
    """Its two tables have the same rows, datasets and selection: one has validation accuracies, the other not."""
    for number, label in enumerate(row.name for row in kappa.ROWS):
        runs = synthetic(label, [[0.5 + 0.01 * number] * 2] * 2, validation=0.6 + 0.02 * number)
    validated, tested = kappa.exhibits(runs, EMBEDDED)
    lines = list(csv.DictReader(io.StringIO(tables_csv([validated, tested]))))
    keys = {(line["dataset"], line["algorithm"], line["selection"], line["domain"]) for line in lines}
    assert len(keys) == len(lines) == 2 * len(kappa.ROWS) * 2
    last = [line["mean"] for line in lines if line["algorithm"] == kappa.ROWS[-1].name and line["dataset"] == "Toy"]
    assert last == ["10.0000", "5.0000"]


def test_paired_difference_of_one_seed_has_no_standard_error(synthetic):
    synthetic("ERM", [[0.5], [0.5]])
    table = differences(synthetic("POGM", [[0.6], [0.6]]), "ERM")
    assert table.texts() == {"ERM": ["+0.0", "+0.0"], "POGM": ["+10.0", "+10.0"]}
    assert "*" not in table.text()
