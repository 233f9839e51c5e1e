"""The ablation of POGM: one change in each row, the references, and runs that the evidence has already."""

from dataclasses import fields, replace

import pytest
from run_folders import record, write_run

from pogm.benchmark.results.records import read_runs
from pogm.experiments import all_experiments, pogm_ablation
from pogm.experiments.base import SCALES
from pogm.experiments.pogm_ablation import REFERENCES, ablation_table

HEART = replace(SCALES["small"], datasets=("HeartDisease",))


@pytest.fixture(scope="module")
def by_row():
    return {row.name: trials for row, trials in pogm_ablation.plan(HEART).items()}


def test_each_row_differs_from_its_reference_in_one_thing(by_row):
    for name, reference in REFERENCES.items():
        if name not in by_row:
            continue
        one, other = by_row[name][0], by_row[reference][0]
        if one.modifiers:
            assert (one.label.split(" + ")[0], other.label.split(" + ")[0]) == ("POGM", "ERM")
            assert replace(one, algorithm=other.algorithm) == other
            continue
        methods = one.algorithm, other.algorithm
        changed = [f.name for f in fields(methods[0]) if getattr(methods[0], f.name) != getattr(methods[1], f.name)]
        symbol, _, value = name.partition(", ")[2].partition(" = ")
        assert [pogm_ablation.SYMBOLS[field] for field in changed] == [symbol]
        assert getattr(methods[0], changed[0]) == float(value)
        assert replace(one, algorithm=other.algorithm) == other


def test_values_are_those_of_the_search_spaces_and_no_matching(by_row):
    names = [name for name in by_row if name.startswith("POGM, κ")]
    assert names == [f"POGM, κ = {value}" for value in ("0", "0.05", "0.2", "0.5")], "the default is 0.1"
    assert {"POGM, α = 0.5", "POGM, E = 10", "OfficialPOGM, α = 0.05", "OfficialPOGM, E = 5"} <= by_row.keys()


def test_modifiers_for_images_have_rows_on_images_only(by_row):
    assert "POGM + SWAD" in by_row
    assert "POGM + CIRL" not in by_row
    assert {"ERM + CIRL", "POGM + CIRL", "POGM + Augment"} <= {row.name for row in pogm_ablation.rows(SCALES["mnist"])}


@pytest.mark.parametrize("scale", [HEART, SCALES["pacs"]], ids=lambda scale: scale.name)
def test_runs_that_the_evidence_has_are_not_computed_again(scale):
    evidence = {trial.id for trial in all_experiments()["evidence"].trials(scale)}
    shared = [row.name for row, trials in pogm_ablation.plan(scale).items() if {t.id for t in trials} <= evidence]
    assert {"ERM", "POGM", "POGM, κ = 0", "OfficialPOGM", "ERM + SWAD", "ERM + SMA"} <= set(shared)


def test_table_has_differences_to_erm_and_to_the_reference(tmp_path):
    accuracies = {"ERM": 0.7, "POGM": 0.71, "POGM, E = 5": 0.68, "ERM + SWAD": 0.72, "POGM + SWAD": 0.75}
    for label, accuracy in accuracies.items():
        for seed in range(3):
            for domain in range(3):
                made = [record(10, [accuracy] * 3, [0.5] * 3)]
                write_run(tmp_path, made, label=label, dataset="Heart", test_domains=(domain,), trial_seed=seed)
    order = list(accuracies)
    texts = ablation_table(sorted(read_runs(tmp_path), key=lambda run: order.index(run.label))).texts()
    assert texts["POGM"][1:3] == ["+1.00 ± 0.00", "–"]
    assert texts["POGM, E = 5"][1:3] == ["-2.00 ± 0.00", "-3.00 ± 0.00"]
    assert texts["POGM + SWAD"][1:3] == ["+5.00 ± 0.00", "+3.00 ± 0.00"]
    assert texts["ERM"] == ["70.0 ± 0.0", "–", "–"] * 2 + ["3"]
