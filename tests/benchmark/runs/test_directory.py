"""Whose a run folder is, before anyone writes to it."""

import json
from pathlib import Path

import pytest
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm.benchmark import demo
from pogm.benchmark.runs.directory import PLAN, check_owner, load_plan, load_trial, make_folder, save_plan
from pogm.benchmark.runs.runner import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    run(trial(ERM(), steps=1), tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_trial_of_a_folder_is_the_one_that_ran_there(folder):
    assert load_trial(folder) == trial(ERM(), steps=1)
    check_owner(folder, trial(ERM(), steps=1))


def test_the_folder_of_another_run_is_refused_with_the_fields_that_differ(folder):
    before = content(folder)
    with pytest.raises(UsageError, match=r"another run's: algorithm.name .* seed is 0 there and 3 here"):
        run(trial(POGM(), steps=1, seed=3), folder)
    assert content(folder) == before


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="new or empty; found other files"):
        run(trial(ERM()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_path_at_or_below_a_file_is_refused_before_training(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"Expected to write to .*; found: .*Choose another --out"):
        run(trial(ERM()), tmp_path / "file" / below)
    assert content(tmp_path) == {tmp_path / "file": b"mine"}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_a_file_system_that_cannot_be_written_to_is_refused():
    with pytest.raises(UsageError, match=r"Expected to write to the folder /proc/pogm; found: "):
        make_folder(Path("/proc/pogm"))


def test_a_name_longer_than_file_systems_have_is_refused(tmp_path):
    with pytest.raises(UsageError, match="File name too long"):
        check_owner(tmp_path / ("x" * 300), trial(ERM()))


@pytest.mark.parametrize("name", ["../up", "a;touch b", "$(touch b)", "new\nline", "<script>", "--out"])
def test_a_strange_name_is_just_a_folder(tmp_path, name):
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
    "everything": (lambda text: "[]", "Expected a field 'trial'"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_changed_trial_file_is_refused_with_its_path_and_what_changed(folder, change, message):
    path = folder / "trial.json"
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text), encoding="utf-8")
    before = content(folder)
    for refused in (lambda: load_trial(folder), lambda: run(trial(ERM(), steps=1), folder)):
        with pytest.raises(UsageError, match=message) as error:
            refused()
        assert str(path) in str(error.value)
    assert content(folder) == before


def test_where_the_run_took_place_is_no_part_of_the_trial(folder):
    saved = json.loads((folder / "trial.json").read_text())
    saved["provenance"]["device"] = "another"
    (folder / "trial.json").write_text(json.dumps(saved))
    assert load_trial(folder) == trial(ERM(), steps=1)


def test_a_folder_without_a_trial_says_how_to_start_one(tmp_path):
    with pytest.raises(UsageError, match="Start one with: pogm run"):
        load_trial(tmp_path)


# Plans.


def test_a_plan_comes_back_as_it_was_written_and_a_newer_one_takes_its_place(tmp_path):
    trials = demo.plan(seeds=1)
    save_plan(trials, tmp_path / "runs")
    assert load_plan(tmp_path / "runs") == trials
    save_plan(trials[:3], tmp_path / "runs")
    assert [trial.id for trial in load_plan(tmp_path / "runs")] == [trial.id for trial in trials[:3]]


@pytest.mark.parametrize("content", ["{}", '[{"steps": 3}]', "[", '"runs"'])
def test_what_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / PLAN).write_text(content)
    with pytest.raises(UsageError, match="Expected"):
        load_plan(tmp_path)
