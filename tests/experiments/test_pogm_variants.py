"""The experiment on variants of POGM: its rows, their controls, and the rule of success."""

from dataclasses import replace

import pytest
from run_folders import record, write_run

from pogm.benchmark.results.records import Run, read_runs
from pogm.experiments import all_experiments, pogm_variants
from pogm.experiments.base import SCALES
from pogm.experiments.pogm_variants import (
    ADAM,
    ADAM_0,
    CONTROLS,
    CROSS,
    ERM_CENTRE_KAPPA_0,
    FISH,
    FISH_0,
    ROWS,
    VARIANTS,
    decided_rows,
    gains,
    success_table,
    variant_table,
)

NAMES = [row.name for row in ROWS]


def test_every_variant_has_a_control_that_differs_in_kappa_only_or_is_erm():
    trials = {row.name: found[0] for row, found in pogm_variants.plan(SCALES["embedded"]).items()}
    assert list(trials) == NAMES
    assert len(VARIANTS) == 8
    for name in VARIANTS:
        row, control = trials[name].algorithm, trials[CONTROLS[name]].algorithm
        assert (row.kappa, control.kappa) == (0.5, 0.0)
        is_erm = type(control).__name__ == "POGM" and row.centre == "erm"
        assert is_erm or replace(row, kappa=0.0) == control


def test_runs_that_the_evidence_has_are_not_computed_again():
    """On MNIST, the first five seeds of a row are those of the evidence, with its options."""
    scale = replace(SCALES["mnist"], seeds=5, evaluate_every=100, changed_by=("--trials", "--evaluate-every"))
    evidence = {trial.id for trial in all_experiments()["evidence"].trials(scale)}
    planned = pogm_variants.plan(SCALES["mnist"])
    shared = [row.name for row, trials in planned.items() if {t.id for t in trials if t.trial_seed < 5} <= evidence]
    assert shared == ["ERM", "Fish", "Reptile", "POGM", "POGM, ERM centre, κ = 0"]


def runs_of(folder, accuracies: dict[str, float], seeds: int, noise: float) -> list[Run]:
    """Runs on three datasets; the gain over ERM varies between seeds."""
    for dataset in ("RotatedDigits", "ColoredDigits", "HeartDisease"):
        for label, accuracy in accuracies.items():
            for seed in range(seeds):
                found = accuracy + (noise * (-1) ** seed if label == FISH.name else 0.0)
                for domain in range(3):
                    made = [record(10, [found] * 3, [0.5] * 3)]
                    write_run(folder, made, label=label, dataset=dataset, test_domains=(domain,), trial_seed=seed)
    order = {label: number for number, label in enumerate(accuracies)}
    return sorted(read_runs(folder), key=lambda run: order[run.label])


@pytest.mark.parametrize(
    ("control", "seeds", "noise", "succeeds"),
    [
        (0.71, 10, 0.01, True),
        (0.73, 10, 0.01, False),  # no gain over the control
        (0.71, 9, 0.01, False),  # too few seeds
        (0.71, 10, 0.1, False),  # within the noise
    ],
)
def test_success_needs_gains_over_erm_and_over_the_control(tmp_path, control, seeds, noise, succeeds):
    runs = runs_of(tmp_path, {"ERM": 0.7, FISH_0.name: control, FISH.name: 0.73}, seeds, noise)
    table = gains(runs)
    assert table.footnotes[-1].endswith(f"of 3: {f'{FISH.name} (3)' if succeeds else 'none'}.")
    assert f" seeds): {FISH.name if succeeds else 'none'}. " in table.footnotes[-1]
    cells = table.rows[2].estimates
    if seeds == 10:
        assert [cell.mean for cell in cells] == [pytest.approx(3), pytest.approx(100 * (0.73 - control))] * 3
        error = 100 * noise * (10 / 9) ** 0.5 / 10**0.5  # sample standard deviation of ± noise, / √10
        assert cells[0].stderr == pytest.approx(error)
    assert table.texts()["ERM"] == ["–"] * 6


def test_tables_of_the_page_have_the_gains_and_the_verdict_of_every_dataset(tmp_path):
    runs = runs_of(tmp_path, {"ERM": 0.7, FISH_0.name: 0.71, FISH.name: 0.73}, seeds=10, noise=0.01)
    by_dataset = {name: [run for run in runs if run.dataset == name] for name in ("HeartDisease", "RotatedDigits")}
    by_dataset["RotatedDigits"] = [run for run in by_dataset["RotatedDigits"] if run.trial_seed < 9]
    heart = variant_table(by_dataset["HeartDisease"])
    texts = ["73.0 ± 0.3", "+3.00 ± 0.33", "+2.00 ± 0.33"]
    assert heart.texts()[FISH.name] == [*texts, *texts, "10"]
    assert heart.texts()["ERM"] == ["70.0 ± 0.0", "–", "–"] * 2 + ["10"]
    found = success_table({"PACS": [], **by_dataset}).texts()
    assert list(found) == list(VARIANTS)
    assert found[FISH.name] == ["–", "yes", "no", "1 of 2"]
    assert found["Outer Adam, κ = 0.5"] == ["–", "–", "–", "0 of 0"]


@pytest.mark.parametrize("further", [0, 1])
def test_variants_that_can_no_longer_succeed_are_decided(tmp_path, further):
    """The Fish centre fails on two datasets, so with four datasets in total it can still succeed on two, not on three.

    Then only ERM, the other variants and their controls are needed.
    """
    accuracies = {"ERM": 0.7, ERM_CENTRE_KAPPA_0.name: 0.7, FISH_0.name: 0.73, FISH.name: 0.73, CROSS.name: 0.7}
    runs = runs_of(tmp_path, accuracies, seeds=10, noise=0.01)
    by_dataset = {name: [run for run in runs if run.dataset == name] for name in ("HeartDisease", "RotatedDigits")}
    others = {name: [] for name in ("PACS", "ColoredMNIST", "RotatedMNIST")[: 2 + further]}
    decided = decided_rows({**by_dataset, **others})
    if further:
        assert decided == set()
        return
    needed = {"ERM", *(set(VARIANTS) - {FISH.name, CROSS.name}), ERM_CENTRE_KAPPA_0.name}
    assert {FISH.name, FISH_0.name, CROSS.name, "Reptile"} <= decided
    assert not decided & needed


def test_variant_without_success_on_the_first_datasets_is_decided(tmp_path, monkeypatch):
    """The Fish centre fails on all three; outer Adam succeeds on all of them. Without Adam, no row is needed."""
    accuracies = {"ERM": 0.7, FISH_0.name: 0.73, FISH.name: 0.73, ADAM_0.name: 0.7, ADAM.name: 0.73}
    runs = runs_of(tmp_path, accuracies, seeds=10, noise=0.01)
    by_dataset = {run.dataset: [other for other in runs if other.dataset == run.dataset] for run in runs}
    monkeypatch.setattr(pogm_variants, "FIRST_DATASETS", frozenset(by_dataset))
    others = {name: [] for name in ("A", "B", "C", "D")}
    decided = decided_rows({**by_dataset, **others})
    assert {FISH.name, FISH_0.name} <= decided
    assert not decided & {"ERM", ADAM.name, ADAM_0.name}
    two = dict(list(by_dataset.items())[:2])
    assert decided_rows({**two, **others, "E": []}) == set(), "the third dataset was not run"
    monkeypatch.setattr(pogm_variants, "VARIANTS", (FISH.name,))
    assert decided_rows({**by_dataset, **others}) == set(NAMES)
