"""The experiment with fewer training samples: which samples train, pairs with ERM, and the table."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import record

from pogm.benchmark.results.table_formats import tables_csv
from pogm.experiments import all_experiments, fewer_samples
from pogm.experiments.base import SCALES
from pogm.experiments.fewer_domains import ROWS
from pogm.experiments.fewer_samples import sample_count_table
from pogm.experiments.output import empty_run

HEART = replace(SCALES["small"], datasets=("HeartDisease",), seeds=2, changed_by=("--trials",))


@pytest.fixture(scope="module")
def by_row():
    return {row.name: trials for row, trials in fewer_samples.plan(HEART).items()}


def test_every_domain_is_held_out_with_every_number_and_runs_are_paired_with_erm(by_row):
    assert list(by_row) == [row.name for row in ROWS]
    for trials in by_row.values():
        found = {(trial.samples, trial.test_domains, trial.trial_seed) for trial in trials}
        assert found == {(n, (d,), seed) for n in (20, 50, 100, None) for d in range(4) for seed in range(2)}
        assert len({trial.id for trial in trials}) == len(trials) == len(found)
        for one, erm in zip(trials, by_row["ERM"], strict=True):
            assert replace(one, algorithm=erm.algorithm, modifiers=erm.modifiers) == erm
    assert len({trial.steps for trials in by_row.values() for trial in trials}) == 1


def test_runs_with_all_samples_are_those_of_the_evidence(by_row):
    evidence = {trial.id for trial in all_experiments()["evidence"].trials(HEART)}
    assert [trial.id in evidence for trial in by_row["Fish"]] == [trial.samples is None for trial in by_row["Fish"]]


def test_table_has_a_level_for_every_number_and_all_samples_last(by_row):
    runs = []
    for name, gain in (("ERM", 0.0), ("Fish", 0.02)):
        for trial in by_row[name]:
            accuracy = 0.5 + (trial.samples or 300) / 1000 + gain * (trial.samples == 20) + 0.01 * trial.trial_seed
            records = (record(50, [accuracy] * 4, [0.9] * 4),)
            runs.append(replace(empty_run(trial, Path(".")), label=name, records=records, done=True))
    table = sample_count_table(runs)
    assert [column.heading for column in table.columns][::2] == [
        "20 samples",
        "50 samples",
        "100 samples",
        "all samples",
    ]
    texts = table.texts()
    assert texts["ERM"][::2] == ["52.5 ± 0.4", "55.5 ± 0.4", "60.5 ± 0.4", "80.5 ± 0.4"]
    assert texts["Fish"][1::2] == ["+2.00 ± 0.00", "+0.00 ± 0.00", "+0.00 ± 0.00", "+0.00 ± 0.00"]
    lines = tables_csv([table]).splitlines()
    assert lines[0] == "dataset,algorithm,selection,samples,value,mean,stderr,n"
    assert any(",all,accuracy," in line for line in lines)
