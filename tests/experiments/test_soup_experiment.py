"""The experiment with soups: members that can be combined, pairs with the evidence, and the table."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import record

from pogm.benchmark.combining.initial_weights import digest_initial_weights
from pogm.benchmark.results.combined import COMBINATION
from pogm.cli import main
from pogm.evidence.sweeps import SOUP_SWEEPS
from pogm.experiments import all_experiments, soups
from pogm.experiments.base import SCALES
from pogm.experiments.output import empty_run, find_combinations
from pogm.experiments.soups import MEMBERS, soup_table

DIGITS = replace(SCALES["embedded"], datasets=("RotatedDigits",), seeds=2, changed_by=("--trials",))
GAINS = {"ERM": 0.0, "ERM + SMA": 0.02}


@pytest.fixture(scope="module")
def by_row():
    return soups.plan(DIGITS)


def test_runs_of_a_group_differ_in_their_minibatches_only(by_row):
    for trials in by_row.values():
        assert len(trials) == 6 * 2 * MEMBERS
        for start in range(0, len(trials), MEMBERS):
            first, *others = trials[start : start + MEMBERS]
            assert len({trial.seed for trial in (first, *others)}) == MEMBERS
            for other in others:
                changed = {"seed": first.seed, "init_seed": first.init_seed, "hparams_seed": 0}
                assert replace(other, **changed) == first
                assert digest_initial_weights(other) == digest_initial_weights(first)


def test_first_run_of_every_group_is_that_of_the_evidence(by_row):
    evidence = {trial.id for trial in all_experiments()["evidence"].trials(DIGITS)}
    for trials in by_row.values():
        assert [trial.id in evidence for trial in trials] == [trial.hparams_seed == 0 for trial in trials]


def finished(by_row):
    """Return the runs. In each group, the second one has the best validation accuracy."""
    return [
        replace(
            empty_run(trial, Path(".")),
            label=row.name,
            records=(record(30, [0.5 + 0.1 * trial.hparams_seed + GAINS[row.name]] * 6, validations(trial)),),
            done=True,
        )
        for row, trials in by_row.items()
        for trial in trials
    ]


def validations(trial):
    return [0.9 if trial.hparams_seed == 1 else 0.8] * 6


def combination(members, rule, accuracy):
    """Return a combination of runs as it is read from its folder."""
    first = members[0]
    facts = {"rule": rule, "kept": len(members), "considered": MEMBERS}
    return replace(
        first,
        id=f"{rule} of {first.id}",
        label=f"{first.label}, {rule}",
        trial={**first.trial, "hparams_seed": 0, COMBINATION: facts},
        records=(record(30, [accuracy] * 6, [0.9] * 6),),
        members=tuple(run.id for run in members),
    )


def test_table_compares_single_runs_the_best_of_a_group_and_combinations(by_row):
    runs = finished(by_row)
    made = [combination(runs[start : start + 2], "greedy soup", 0.75) for start in range(0, len(runs), MEMBERS)]
    texts = soup_table([*runs, *made]).texts()
    assert list(texts) == [f"{row}{rest}" for row in GAINS for rest in ("", f", best of {MEMBERS}", ", greedy soup")]
    assert texts["ERM"] == ["1", "50.0 ± 0.0", "–", "2"]
    assert texts["ERM, best of 3"] == ["3", "60.0 ± 0.0", "+10.00 ± 0.00", "2"], "by validation accuracy"
    assert texts["ERM, greedy soup"] == ["3", "75.0 ± 0.0", "+25.00 ± 0.00", "2"], "two of three runs are kept"
    assert texts["ERM + SMA, best of 3"] == ["3", "62.0 ± 0.0", "+12.00 ± 0.00", "2"]


def test_experiment_shows_combinations_of_its_own_runs_only(by_row):
    runs = finished(by_row)
    own = combination(runs[:2], "greedy soup", 0.7)
    foreign = replace(own, id="foreign", members=(runs[0].id, "another run"))
    found = find_combinations(runs, {run.id: run for run in (*runs, own, foreign)})
    assert [run.id for run in found] == [own.id]
    assert [name for name, one in all_experiments().items() if one.combines] == ["soups"]


def test_sweep_counts_a_combination_as_one_run_of_a_held_out_domain():
    sweep = SOUP_SWEEPS[0]
    runs = [replace(run, records=(record(1000, [0.7] * 4, [0.9] * 4),)) for run in finished_of(sweep)]
    groups = [runs[start : start + MEMBERS] for start in range(0, len(runs), MEMBERS)]
    made = [combination(group, "uniform soup", 0.8) for group in groups]
    foreign = [replace(run, label="foreign", members=("another run",)) for run in made]
    labels = {"ERM", "ERM + SMA", "ERM, uniform soup", "ERM + SMA, uniform soup"}
    assert {run.label for run in sweep.complete_rows([*runs, *made, *foreign])} == labels
    assert {run.label for run in sweep.complete_rows([*runs, *made[1:]])} == labels - {"ERM, uniform soup"}


def finished_of(sweep):
    return [
        replace(empty_run(trial, Path(".")), label=row.name, done=True)
        for row, trials in sweep.plan.items()
        for trial in trials
    ]


def test_trained_runs_are_combined_and_shown(tmp_path, capsys):
    """The commands of results/soups/README.md, on small data."""
    words = ["experiment", "soups", "--scale", "embedded", "--datasets", "ColoredDigits", "--trials", "1"]
    words += ["--steps", "3", "--out", str(tmp_path), "--device", "cpu"]
    assert main(words) == 0
    assert main(["soup", str(tmp_path / "embedded" / "runs"), "--algorithms", "ERM", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert "ERM, uniform soup" in capsys.readouterr().out
