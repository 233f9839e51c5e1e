"""The experiment with fewer training domains: which domains train, pairs with ERM, and the table."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import record

from pogm.benchmark.results.table_formats import tables_csv
from pogm.experiments import all_experiments, fewer_domains
from pogm.experiments.base import SCALES
from pogm.experiments.fewer_domains import ROWS, domain_count_table
from pogm.experiments.output import empty_run

SPOKEN = replace(SCALES["small"], datasets=("SpokenDigits",), seeds=2, changed_by=("--trials",))


@pytest.fixture(scope="module")
def by_row():
    return {row.name: trials for row, trials in fewer_domains.plan(SPOKEN).items()}


def test_every_domain_trains_equally_often_and_runs_are_paired_with_erm(by_row):
    assert list(by_row) == [row.name for row in ROWS]
    for trials in by_row.values():
        assert len({trial.id for trial in trials}) == len(trials) == 2 * 6 * 4
        for count in (2, 3, 4, 5):
            own = [trial.train_domains for trial in trials if len(trial.train_domains) == count]
            assert Counter(domain for domains in own for domain in domains) == dict.fromkeys(range(6), 2 * count)
            assert len(set(own)) == 6, "no set of training domains is there twice with one seed"
        for one, erm in zip(trials, by_row["ERM"], strict=True):
            assert replace(one, algorithm=erm.algorithm, modifiers=erm.modifiers) == erm


def test_runs_with_one_held_out_domain_are_those_of_the_evidence(by_row):
    evidence = {trial.id for trial in all_experiments()["evidence"].trials(SPOKEN)}
    shared = [trial.id in evidence for trial in by_row["Fish"]]
    assert shared == [len(trial.test_domains) == 1 for trial in by_row["Fish"]]


def test_table_has_the_mean_accuracy_on_unseen_domains_and_paired_differences(by_row):
    runs = []
    for name, gain in (("ERM", 0.0), ("Fish", 0.02)):
        for trial in by_row[name]:
            count = len(trial.train_domains)
            accuracies = [0.5 + 0.1 * count + gain * (count == 2) + 0.01 * trial.trial_seed] * 6
            for domain in trial.train_domains:
                accuracies[domain] = 0.0  # accuracies on training domains do not count
            first = record(50, accuracies, [0.9] * 6)
            last = record(150, [0.0] * 6, [0.8] * 6)  # a lower validation accuracy
            runs.append(replace(empty_run(trial, Path(".")), label=name, records=(first, last), done=True))
    table = domain_count_table(runs)
    headings = [column.heading for column in table.columns]
    assert headings[:3] == ["2 domains", "difference to ERM", "3 domains"]
    texts = table.texts()
    assert texts["ERM"][:3] == ["70.5 ± 0.4", "–", "80.5 ± 0.4"]
    assert texts["Fish"][:4] == ["72.5 ± 0.4", "+2.00 ± 0.00", "80.5 ± 0.4", "+0.00 ± 0.00"]
    lines = tables_csv([table]).splitlines()
    assert lines[0] == "dataset,algorithm,selection,training_domains,value,mean,stderr,n"
    assert "SpokenDigits,Fish,training-domain,2,difference,2.0000,0.0000,2" in lines


def test_table_without_finished_runs_has_empty_cells(by_row):
    runs = [replace(empty_run(trial, Path(".")), label="ERM") for trial in by_row["ERM"]]
    (table,) = fewer_domains.exhibits(runs, SPOKEN)
    assert len(table.columns) == 2 * 4
    assert all(cell.mean is None for cell in table.rows[0].cells)
