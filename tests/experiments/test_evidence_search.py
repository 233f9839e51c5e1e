"""The random search of the best methods: pairs with ERM, fresh seeds, and the table."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import record

from pogm._system.errors import UsageError
from pogm.benchmark.results.records import Run
from pogm.evidence.sweeps import SEARCH_SWEEPS, SWEEPS
from pogm.evidence.tables import search_table
from pogm.experiments import evidence_search, find_experiments
from pogm.experiments.base import SCALES
from pogm.experiments.evidence_search import BEST, CONFIGURATIONS, FIRST_SEED, SEEDS
from pogm.experiments.output import empty_run
from pogm.experiments.planning import check_scale

HEART = replace(SCALES["small"], datasets=("HeartDisease",))
SWEEP = next(sweep for sweep in SEARCH_SWEEPS if sweep.name == "heart_disease")


@pytest.fixture(scope="module")
def by_row():
    return {row.name: trials for row, trials in SWEEP.plan.items()}


def test_rows_have_the_same_data_seeds_and_training_settings_as_erm(by_row):
    assert list(by_row) == ["ERM", *BEST["HeartDisease"]]
    for trials in by_row.values():
        assert len(trials) == 4 * CONFIGURATIONS * SEEDS
        for one, erm in zip(trials, by_row["ERM"], strict=True):
            assert replace(one, algorithm=erm.algorithm) == erm


def test_first_configuration_is_the_defaults_and_the_others_are_drawn(by_row):
    defaults = [trial for trial in by_row["Fishr"] if trial.hparams_seed == 0]
    assert {trial.algorithm for trial in defaults} == {defaults[0].algorithm}
    assert {trial.training for trial in defaults} == {HEART.dataset("HeartDisease").training}
    penalties = {trial.algorithm.penalty for trial in by_row["Fishr"]}
    assert len(penalties) == 1 + (CONFIGURATIONS - 1) * SEEDS
    assert {trial.algorithm.penalty_anneal_iters for trial in by_row["Fishr"]} == {40}, "within the short runs"


def test_no_seed_is_one_that_chose_the_methods(by_row):
    (evidence,) = (sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    used = {(trial.trial_seed, trial.seed) for trials in evidence.plan.values() for trial in trials}
    own = {(trial.trial_seed, trial.seed) for trials in by_row.values() for trial in trials}
    assert {seed for seed, _ in own} == set(range(FIRST_SEED, FIRST_SEED + SEEDS))
    assert not {number for _, number in used} & {number for _, number in own}


def test_dataset_without_a_list_has_no_rows():
    assert evidence_search.plan(SCALES["embedded"]) == {}
    chosen = find_experiments(["evidence_search"])
    with pytest.raises(UsageError, match="datasets for which evidence_search has rows; found none among RotatedDigits"):
        check_scale(chosen, SCALES["embedded"])
    check_scale(chosen, HEART)
    check_scale(find_experiments(["evidence_search", "table2"]), SCALES["embedded"])


def runs_of(by_row, best_configuration: int) -> list[Run]:
    """Runs of ERM and Fishr. Validation is best in one configuration, where Fishr has 2 points more than ERM."""
    runs = []
    for name in ("ERM", "Fishr"):
        for trial in by_row[name]:
            is_best = trial.hparams_seed == best_configuration
            tested = 0.7 + 0.001 * trial.trial_seed + 0.02 * (is_best and name == "Fishr")
            accuracy = record(200, [tested] * 4, [0.9 if is_best else 0.5] * 4)
            runs.append(replace(empty_run(trial, Path(".")), records=(accuracy,), done=True))
    return runs


def test_table_compares_the_selected_configurations(by_row):
    complete = SWEEP.complete_rows(runs_of(by_row, 3))
    assert {run.label for run in complete} == {"ERM", "Fishr"}
    table = search_table(SWEEP, complete)
    cells = {row.key: row.cells for row in table.rows}
    difference, _, _, defaults = cells["Fishr"][1:5]
    assert (difference.mean, difference.n) == (pytest.approx(2.0), SEEDS)
    assert cells["Fishr"][0].mean - defaults.mean == pytest.approx(2.0)
    assert cells["ERM"][0].mean == pytest.approx(cells["ERM"][4].mean)
    gains = [cells["Fishr"][number].mean - cells["ERM"][number].mean for number in (0, 5, 8)]
    assert gains == pytest.approx([2.0, 2.0, 2.0 / CONFIGURATIONS]), "selected, oracle, mean of all configurations"


def test_row_is_complete_with_all_configurations(by_row):
    runs = runs_of(by_row, 3)
    assert {run.label for run in SWEEP.complete_rows(runs[:-1])} == {"ERM"}
