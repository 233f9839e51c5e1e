"""Run directories: checks before anything is written to them, and saved plans."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from processes import records
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import IntegrityError, StoppedError, UsageError
from pogm._system.files import lock_folder
from pogm.benchmark import demo
from pogm.benchmark.executors.worker import run_job
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.runs import runner
from pogm.benchmark.runs.directory import change_run, check_owner, extend_run, load_trial, make_folder
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.state import find_problems, state_of
from pogm.benchmark.runs.sweep_directory import PLAN, load_plan, load_sweep, save_plan, save_sweep
from pogm.cli import main
from pogm.data.datasets.colored_digits import ColoredDigits
from pogm.data.datasets.rotated_digits import RotatedDigits
from pogm.engine.session import Session

SWEEP = Sweep(("ERM", "POGM"), (ColoredDigits(),), configurations=2, trials=1, steps=5, evaluate_every=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run directory of a finished run."""
    run(trial(ERM(), steps=1), tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_load_trial_returns_the_trial_that_ran(folder):
    assert load_trial(folder) == trial(ERM(), steps=1)
    check_owner(folder, trial(ERM(), steps=1))


def test_the_directory_of_another_run_is_an_error_with_the_fields_that_differ(folder):
    before = content(folder)
    with pytest.raises(UsageError, match=r"another run: algorithm.name .* seed is 0 there and 3 here"):
        run(trial(POGM(), steps=1, seed=3), folder)
    assert content(folder) == before


def test_a_directory_with_other_files_is_an_error_and_is_not_changed(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="new or empty; found other files"):
        run(trial(ERM()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_path_at_or_below_a_file_is_an_error_before_training(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"Expected to write to .*; found: .*Choose another --out"):
        run(trial(ERM()), tmp_path / "file" / below)
    assert content(tmp_path) == {tmp_path / "file": b"mine"}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system without write permission")
def test_a_linked_folder_in_a_run_directory_is_refused_and_the_target_unchanged(folder, tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "film.part").write_bytes(b"precious")
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(downloads)
    (folder / "done").unlink()
    with pytest.raises(IntegrityError, match=rf"Expected a folder at {folder}/checkpoints; found a symbolic link"):
        run(load_trial(folder), folder)
    assert [path.name for path in downloads.iterdir()] == ["film.part"]


def test_a_read_only_file_system_is_an_error():
    with pytest.raises(UsageError, match=r"Expected to write to the folder /proc/pogm; found: "):
        make_folder(Path("/proc/pogm"))


def test_a_run_of_a_sweep_without_its_trial_file_is_refused_and_unchanged(tmp_path):
    one = trial(ERM(), steps=1)
    folder = tmp_path / one.id
    run(one, folder)
    for name in ("trial.json", "done"):
        (folder / name).unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    message = r"found other files only\. Restore it from a copy, or delete the folder"
    with pytest.raises(IntegrityError, match=message):
        run(one, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for _ in range(2):  # with --retry-failed, too
        (error,) = run_job([one], tmp_path, RunOptions())
        assert re.search(message, error)
        assert state_of(folder) == "failed"


def test_a_name_that_is_too_long_for_the_file_system_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="File name too long"):
        check_owner(tmp_path / ("x" * 300), trial(ERM()))


@pytest.mark.parametrize("name", ["../up", "a;touch b", "$(touch b)", "new\nline", "<script>", "--out"])
def test_a_name_with_special_characters_is_only_a_directory(tmp_path, name):
    (tmp_path / "runs").mkdir()
    run(trial(ERM(), steps=1), tmp_path / "runs" / name)
    assert (tmp_path / "runs" / name / "done").exists()
    assert len([path for path in tmp_path.rglob("*") if path.name == "done"]) == 1
    assert not list(tmp_path.rglob("b"))


CHANGES = {
    "a value": (lambda text: text.replace('"steps": 1', '"steps": 2'), 'changed: id is "'),
    "the label": (lambda text: text.replace('"label": "ERM"', '"label": "POGM"'), 'label is "POGM" there and "ERM"'),
    "a domain's name": (lambda text: text.replace('"15"', '"<script>"'), "domains is "),
    "an unknown field": (lambda text: text.replace("{", '{"note": 1,', 1), "note is 1 there and absent here"),
    "an unknown field of the trial": (lambda text: text.replace('"seed"', '"sead": 1, "seed"'), "Did you mean 'seed'?"),
    "a field twice": (lambda text: text.replace('"seed"', '"seed": 1,\n"seed"'), r"'seed' twice \(lines \d+, \d+\)"),
    "a type": (lambda text: text.replace('"steps": 1', '"steps": "1"'), "steps of a trial to be of type int"),
    "a comma": (lambda text: text.replace(",", "", 1), "line 4"),
    "a BOM": (lambda text: "\ufeff" + text, "BOM"),
    "its size": (lambda text: text + " " * 2**20, "at most 1048576 bytes"),
    "everything": (lambda text: "[]", "Expected trial.json to be an object"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_changed_trial_file_is_an_error_with_its_path_and_the_change(folder, change, message):
    path = folder / "trial.json"
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text), encoding="utf-8")
    before = content(folder)
    for function in (lambda: load_trial(folder), lambda: run(trial(ERM(), steps=1), folder)):
        with pytest.raises(UsageError, match=message) as error:
            function()
        assert str(path) in str(error.value)
    assert content(folder) == before


def test_the_provenance_is_no_part_of_the_trial(folder):
    saved = json.loads((folder / "trial.json").read_text())
    saved["provenance"]["device"] = "another"
    (folder / "trial.json").write_text(json.dumps(saved))
    assert load_trial(folder) == trial(ERM(), steps=1)


def test_the_error_for_a_directory_without_a_trial_says_how_to_start_one(tmp_path):
    with pytest.raises(UsageError, match="Start one with: pogm run"):
        load_trial(tmp_path)


def test_the_state_of_a_run_follows_from_its_directory(tmp_path):
    short = trial(ERM(), steps=3, evaluate_every=2)
    assert state_of(tmp_path / "r") == "waiting"
    run(short, tmp_path / "r")
    assert state_of(tmp_path / "r") == "done"
    (tmp_path / "r" / "done").unlink()
    assert state_of(tmp_path / "r") == "interrupted"
    (tmp_path / "r" / "failed.json").write_text('{"error": "out of luck"}')
    assert state_of(tmp_path / "r") == "failed"
    with lock_folder(tmp_path / "r"):
        assert state_of(tmp_path / "r") == "running"


# Sweeps and plans.


def test_a_sweep_is_saved_and_loaded_and_no_other_sweep_may_use_its_directory(tmp_path):
    save_sweep(SWEEP, tmp_path / "s")
    assert load_sweep(tmp_path / "s") == SWEEP
    save_sweep(SWEEP, tmp_path / "s")
    with pytest.raises(UsageError, match="configurations is 2 there and 3 here"):
        save_sweep(replace(SWEEP, configurations=3), tmp_path / "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="other files"):
        save_sweep(SWEEP, tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "is_extension"),
    [
        ({"configurations": SWEEP.configurations + 1}, True),
        ({"trials": SWEEP.trials + 2}, True),
        ({"algorithms": ("Fishr", *SWEEP.algorithms), "trials": SWEEP.trials + 1}, True),
        ({"datasets": (RotatedDigits(), *SWEEP.datasets)}, True),
        ({"configurations": SWEEP.configurations - 1}, False),
        ({"algorithms": SWEEP.algorithms[1:]}, False),
        ({"trials": SWEEP.trials + 1, "precision": "bf16"}, False),
        ({"modifiers": ("Mixup",)}, False),
    ],
)
def test_a_sweep_is_extended_only_if_all_its_trials_stay(tmp_path, changes, is_extension):
    other = replace(SWEEP, **changes)
    save_sweep(SWEEP, tmp_path / "s")
    assert ({trial.id for trial in SWEEP.plan()} < {trial.id for trial in other.plan()}) == is_extension
    with pytest.raises(UsageError, match="Add --allow-change to extend it" if is_extension else "Choose another --out"):
        save_sweep(other, tmp_path / "s")
    if is_extension:
        save_sweep(other, tmp_path / "s", allow_change=True)
        assert load_sweep(tmp_path / "s").to_json() == other.to_json()
    else:
        with pytest.raises(UsageError, match="found another sweep"):
            save_sweep(other, tmp_path / "s", allow_change=True)
        assert load_sweep(tmp_path / "s") == SWEEP


def test_the_status_names_a_finished_run_that_lost_its_trial(folder):
    assert find_problems(folder.parent) == []
    (folder / "trial.json").unlink()
    (problem,) = find_problems(folder.parent)
    assert problem.startswith(f"Expected trial.json in {folder}; found none, so that no table has this run.")


def test_a_run_that_another_process_finishes_during_the_set_up_is_not_trained_again(tmp_path, monkeypatch):
    """It has no checkpoint then, so that a resume would begin again and delete its records."""
    one = trial(ERM())
    folder = tmp_path / one.id

    def finish_elsewhere(*args):
        monkeypatch.setattr(runner, "Session", Session)
        run(one, folder)
        before.update(content(folder))
        return Session(*args)

    before: dict[Path, bytes] = {}
    monkeypatch.setattr(runner, "Session", finish_elsewhere)
    seen: list[object] = []
    run(one, folder, on_evaluation=seen.append)
    assert before
    assert not seen
    assert content(folder) == before


def test_a_finished_run_of_a_sweep_has_no_checkpoint_since_it_cannot_be_extended(tmp_path):
    one = trial(ERM(), steps=3)
    for name in ("alone", one.id):
        run(one, tmp_path / name)
    files = {name: {path.name for path in (tmp_path / name).iterdir()} for name in ("alone", one.id)}
    assert files["alone"] - files[one.id] == {"checkpoints"}
    with pytest.raises(UsageError, match="a run of a sweep, whose trials are fixed"):
        extend_run(tmp_path / one.id, 5)
    before = content(tmp_path / one.id)
    run(one, tmp_path / one.id)
    (tmp_path / one.id / "done").unlink()  # it starts again, with the same result
    run(one, tmp_path / one.id)
    assert records(tmp_path / one.id) == records(tmp_path / "alone")
    assert content(tmp_path / one.id).keys() == before.keys()


@pytest.mark.parametrize(
    "text",
    [
        '{"algorithms": []}',
        "[]",
        json.dumps(dict.fromkeys(SWEEP.__dataclass_fields__, 1)),
        "{",
        *(json.dumps(SWEEP.to_json() | {name: [None]}) for name in ("algorithms", "datasets", "modifiers", "settings")),
    ],
)
def test_a_changed_sweep_file_is_an_error_with_its_path(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_sweep(tmp_path)
    assert str(caught.value).count(str(tmp_path / "sweep.json")) == 1


def test_load_plan_returns_the_plan_that_was_saved_last(tmp_path):
    trials = demo.plan(seeds=1)
    save_plan(trials, tmp_path / "runs")
    assert load_plan(tmp_path / "runs") == trials
    save_plan(trials[:3], tmp_path / "runs")
    assert [trial.id for trial in load_plan(tmp_path / "runs")] == [trial.id for trial in trials[:3]]


@pytest.mark.parametrize("content", ["{}", '[{"steps": 3}]', "[", '"runs"'])
def test_an_invalid_plan_is_an_error(tmp_path, content):
    (tmp_path / PLAN).write_text(content)
    with pytest.raises(UsageError, match="Expected"):
        load_plan(tmp_path)


# Changes of a run that has begun.


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of 21 minibatches with 3 evaluations that was stopped after 15."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(StoppedError):
        run(trial(ERM()), folder, on_round=lambda count: count == 15 and signal.raise_signal(signal.SIGTERM))
    return folder


def test_a_changed_setting_is_refused_with_the_difference_and_the_safe_settings(stopped):
    other = trial(ERM(), seed=3, evaluate_every=5)
    for check in (check_owner, change_run):
        with pytest.raises(UsageError) as error:
            check(stopped, other)
        assert "seed is 0 there and 3 here" in str(error.value)
        assert "evaluate_every is 10 there and 5 here" in str(error.value)
        assert "Choose another --out. A run can continue with other values of steps and evaluate_every" in str(
            error.value
        )
    with pytest.raises(UsageError, match=r"evaluate_every is 10 .*Add --allow-change to continue with them"):
        check_owner(stopped, trial(ERM(), evaluate_every=5))


def test_a_safe_change_continues_the_run_and_is_listed(stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    changed = trial(ERM(), steps=31, evaluate_every=4)
    assert change_run(folder, changed) == "evaluate_every is 10 there and 4 here; steps is 21 there and 31 here"
    assert change_run(folder, changed) == ""
    run(changed, folder)
    run(changed, tmp_path / "whole")
    found = {one["step"]: one["accuracy"] for one in records(folder)}
    whole = {one["step"]: one["accuracy"] for one in records(tmp_path / "whole")}
    assert list(found) == [0, 10, 16, 20, 24, 28, 30]
    assert all(found[step] == whole[step] for step in (0, 16, 20, 24, 28, 30))


def test_a_run_cannot_have_fewer_minibatches_than_it_has_trained(stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    with pytest.raises(UsageError, match="Expected --steps of at least 15"):
        change_run(folder, trial(ERM(), steps=12))


def test_the_command_lists_the_changes_that_it_allows(stopped, tmp_path, capsys):
    folder = shutil.copytree(stopped, tmp_path / "run")
    words = ["run", "--dataset", "RotatedDigits", "--algorithm", "ERM", "--test-domain", "0", "--out", str(folder)]
    words += ["--device", "cpu", "--steps", "21", "--evaluate-every", "5"]
    assert main(words) == 2
    assert "Add --allow-change" in capsys.readouterr().err
    assert main([*words, "--allow-change"]) == 0
    assert "evaluate_every is 10 there and 5 here" in capsys.readouterr().err
