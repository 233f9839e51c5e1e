"""Sweeps: what is planned, what is left to do, and that nothing is done twice."""

import json
from dataclasses import replace

import pytest
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm._system.files import locked
from pogm.benchmark.plan.sweep import Sweep, carry_out, load_sweep, save_sweep, state_of, status
from pogm.benchmark.runs.estimate import duration, estimates
from pogm.benchmark.runs.local import Outcome
from pogm.benchmark.runs.runner import Settings, run
from pogm.cli import main
from pogm.data.datasets import dataset_class
from pogm.data.datasets.splits import seed_hash


def named(*names):
    return tuple(dataset_class(name)() for name in names)


SMALL = Sweep(("ERM", "POGM"), named("ColoredDigits"), configurations=2, trials=1, steps=5, evaluate_every=4)


def test_single_mode_holds_out_every_domain_and_full_mode_every_pair_too():
    protocol = Sweep(("ERM",), named("RotatedDigits"))
    assert len(protocol.plan()) == 60 * 6
    assert len(replace(protocol, mode="full").plan()) == 60 * 6 * 7 // 2


def test_seeds_are_those_of_the_protocol():
    trials = Sweep(("POGM",), named("ColoredMNIST"), configurations=1, trials=1).plan()
    assert [t.seed for t in trials] == [seed_hash("ColoredMNIST", "POGM", [e], 0, 0) for e in range(3)]
    assert trials[2].seed == 75921242


def test_trials_draw_other_configurations_and_the_first_is_the_defaults():
    plan = Sweep(("POGM",), named("RotatedDigits"), configurations=4, trials=2).plan()
    first = [t for t in plan if t.hparams_seed == 0]
    assert all(t.algorithm == POGM() for t in first)
    drawn = {(t.trial_seed, t.hparams_seed): (t.training.lr, t.algorithm) for t in plan if t.hparams_seed > 0}
    assert len(set(drawn.values())) == 6


def test_every_trial_has_a_folder_of_its_own():
    plan = Sweep(
        ("ERM", "POGM"), named("ColoredDigits", "RotatedDigits"), configurations=3, trials=2, mode="full"
    ).plan()
    assert len({t.id for t in plan}) == len(plan)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "singel"}, "Did you mean 'single'"),
        ({"configurations": 0}, "--configurations of at least 1"),
        ({"trials": -1}, "--trials of at least 1"),
        ({"algorithms": ("ERM", "ERM")}, "each of --algorithms once"),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **changes)


def test_unknown_names_are_refused_before_anything_is_written(tmp_path, capsys):
    command = ["sweep", "--algorithms", "POGN", "--datasets", "ColoredDigits", "--out", str(tmp_path / "s")]
    assert main(command) == 2
    assert "Did you mean 'POGM'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_setting_is_for_all_algorithms_or_for_the_one_in_its_prefix():
    settings = ("POGM.inner_steps=5", "lr=0.002", "POGM.batch_size=16", "Mixup.alpha=0.7")
    plan = replace(SMALL, modifiers=("Mixup",), settings=settings).plan()
    pogm, erm = ([t for t in plan if isinstance(t.algorithm, kind)] for kind in (POGM, ERM))
    assert {t.algorithm.inner_steps for t in pogm} == {5}
    assert {t.training.lr for t in plan} == {0.002}
    assert {t.training.batch_size for t in pogm} == {16} != {t.training.batch_size for t in erm}
    assert {modifier.alpha for t in plan for modifier in t.modifiers} == {0.7}
    assert {t.id for t in replace(SMALL, settings=("POGM.kappa=0.3",)).plan()} & {t.id for t in SMALL.plan()} == {
        t.id for t in SMALL.plan() if isinstance(t.algorithm, ERM)
    }


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("kappa=0.1", "'kappa', which is missing from ERM on ColoredDigits. Name what it is for: --set POGM.kappa=0.1"),
        ("Fish.meta_lr=0.1", "what is run (ERM, POGM); found 'Fish.meta_lr=0.1'. Add Fish to --algorithms, or leave"),
        ("Mixup.alpha=0.1", "Add Mixup to --with, or leave out this setting"),
        ("PGOM.kappa=0.1", "found 'PGOM'. Did you mean 'POGM'?"),
        ("POGM.kapa=0.1", "a hyperparameter of POGM on ColoredDigits out of"),
        ("lrr=0.1", "a hyperparameter of ERM, POGM on ColoredDigits out of"),
        ("POGM.kappa=-1", "POGM.kappa to be a number of at least 0; found '-1'"),
        ("POGM.kappa", "--set NAME=VALUE; found 'POGM.kappa'"),
    ],
)
def test_a_setting_that_does_not_apply_fails_once_and_before_anything_is_written(tmp_path, capsys, setting, words):
    command = ["sweep", "--algorithms", "ERM", "POGM", "--datasets", "ColoredDigits", "--set", setting]
    assert main([*command, "--out", str(tmp_path / "s")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("Expected") == 1
    assert not (tmp_path / "s").exists()


def test_a_setting_that_only_some_datasets_have_is_refused():
    with pytest.raises(UsageError, match="Give datasets like PACS a command of their own"):
        Sweep(("ERM",), named("ColoredDigits", "PACS"), settings=("image_size=64",)).plan()


def test_a_sweep_is_saved_and_loaded_and_its_folder_is_its_own(tmp_path):
    save_sweep(SMALL, tmp_path / "s")
    assert load_sweep(tmp_path / "s") == SMALL
    save_sweep(SMALL, tmp_path / "s")
    with pytest.raises(UsageError, match="configurations is 2 there and 3 here"):
        save_sweep(replace(SMALL, configurations=3), tmp_path / "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="other files"):
        save_sweep(SMALL, tmp_path / "other")


@pytest.mark.parametrize(
    "text", ['{"algorithms": []}', "[]", json.dumps(dict.fromkeys(SMALL.__dataclass_fields__, 1)), "{"]
)
def test_a_changed_plan_is_refused(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises((UsageError, TypeError)) as caught:
        load_sweep(tmp_path)
    assert isinstance(caught.value, UsageError)


def test_a_run_is_in_one_of_five_states(tmp_path):
    short = trial(ERM(), steps=3, evaluate_every=2)
    assert state_of(tmp_path / "r") == "waiting"
    run(short, tmp_path / "r")
    assert state_of(tmp_path / "r") == "done"
    (tmp_path / "r" / "done").unlink()
    assert state_of(tmp_path / "r") == "interrupted"
    (tmp_path / "r" / "failed.json").write_text('{"error": "out of luck"}')
    assert state_of(tmp_path / "r") == "failed"
    with locked(tmp_path / "r"):
        assert state_of(tmp_path / "r") == "running"


def test_only_what_is_left_is_run(tmp_path):
    """Finished and running trials are not touched; failed ones only when asked."""
    plan = SMALL.plan()
    done, failed, running = (tmp_path / t.id for t in plan[:3])
    for folder in (done, failed, running):
        folder.mkdir()
    (done / "done").touch()
    (failed / "failed.json").write_text('{"error": "out of luck"}')
    given = []

    def pretend(trials, *_):
        given.append([t.id for t in trials])
        return (Outcome(t) for t in trials)

    with locked(running):
        outcomes = list(carry_out(SMALL.plan(), tmp_path, Settings(), pretend))
        list(carry_out(SMALL.plan(), tmp_path, Settings(), pretend, retry_failed=True))
    assert {o.trial.id for o in outcomes} == {t.id for t in plan}
    assert [o.error for o in outcomes if o.error] == ["out of luck"]
    assert given[0] == [t.id for t in plan[3:]]
    assert given[1] == [plan[1].id] + [t.id for t in plan[3:]]


def test_a_sweep_runs_resumes_and_reports_from_the_command_line(tmp_path, capsys):
    folder = tmp_path / "s"
    command = ["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", "2", "--trials", "1"]
    command += ["--steps", "5", "--evaluate-every", "4", "--workers", "1", "--out", str(folder)]
    assert main([*command, "--dry-run"]) == 0
    assert "6 runs to do" in capsys.readouterr().out
    assert main([*command, "--estimate"]) == 0
    assert "6 runs, about" in capsys.readouterr().out
    assert not folder.exists()
    assert main(command) == 0
    assert "Training-domain validation" in capsys.readouterr().out
    assert (folder / "report.html").exists()
    first = load_sweep(folder).plan()[0]
    (folder / first.id / "done").unlink()
    assert main(["status", str(folder)]) == 0
    assert "5 done, 0 running, 1 interrupted" in capsys.readouterr().out
    untouched = {p: p.stat().st_mtime_ns for p in folder.glob("*/records.jsonl") if p.parent.name != first.id}
    assert main(["resume", str(folder), "--workers", "1"]) == 0
    assert all(p.stat().st_mtime_ns == when for p, when in untouched.items()), "finished runs are not computed again"
    assert status(load_sweep(folder), folder)["ColoredDigits", "ERM"] == {"done": 6}


def test_an_estimate_counts_every_run_and_every_evaluation():
    plan = SMALL.plan()
    (erm, pogm) = estimates(plan, Settings())
    assert (erm.runs, pogm.runs) == (6, 6)
    assert erm.seconds > 0
    assert erm.memory_gb > 0
    longer = estimates([replace(t, steps=5000) for t in plan if t.label == "ERM"], Settings())[0]
    assert longer.seconds > 20 * erm.seconds


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (600, "10.0 min"), (9000, "2.5 h"), (259200, "3.0 days")])
def test_durations_are_in_the_unit_that_people_use(seconds, text):
    assert duration(seconds) == text
