"""Repeated reading of a folder of runs: states, changed files only, and no writes."""

import shutil
from dataclasses import replace

import pytest
from run_folders import record, write_run
from support import trial

from pogm import ERM
from pogm._system.files import lock_folder
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.record_file import append_record
from pogm.benchmark.runs.runner import run
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.data.datasets import dataset_class
from pogm.report import watch
from pogm.report.watch import Watcher

SMALL = Sweep(("ERM", "POGM"), (dataset_class("ColoredDigits")(),), configurations=1, trials=1, steps=5)


def at(step, **more):
    return record(step, [0.5] * 3, [0.5] * 3, **more)


@pytest.fixture
def reads(monkeypatch):
    """Record the folders that are read."""
    state = []
    real = watch.read_run
    monkeypatch.setattr(watch, "read_run", lambda folder: (state.append(folder), real(folder))[1])
    return state


def test_states_equal_pogm_status_and_a_sweep_lists_waiting_trials(tmp_path):
    save_sweep(SMALL, tmp_path)
    first, second, third, *rest = SMALL.plan()
    run(first, tmp_path / first.id)
    shutil.copytree(tmp_path / first.id, tmp_path / "copied")  # counts once
    for other in (second, third):
        run(replace(other, precision="fp64"), tmp_path / "elsewhere" / other.id)
        (tmp_path / "elsewhere" / other.id / "done").unlink()
    (tmp_path / "elsewhere" / third.id / "failed.json").write_text('{"error": "out of luck"}')
    with lock_folder(tmp_path / "elsewhere" / second.id):
        state = Watcher(tmp_path).read()
    assert sorted(one.state for one in state.started) == ["done", "failed", "running"]
    assert [one.id for one in state.waiting] == [one.id for one in (second, third, *rest)]
    assert state.problems == ()


def test_runs_at_any_depth_are_read_without_a_sweep(tmp_path):
    write_run(tmp_path / "deep" / "down", [at(0)])
    write_run(tmp_path / "deep", [at(0)], trial_seed=1, done=False)
    state = Watcher(tmp_path).read()
    assert [one.state for one in state.started] == ["done", "interrupted"]
    assert state.waiting == ()


def test_plan_of_pogm_train_is_no_problem(tmp_path):
    write_run(tmp_path / "runs" / "one", [at(0)])
    (tmp_path / "plan.json").write_text('{"options": {}, "steps": 3}')
    state = Watcher(tmp_path).read()
    assert [one.state for one in state.started] == ["done"]
    assert state.problems == ()


def test_only_changed_runs_are_read_again(tmp_path, reads):
    folders = [write_run(tmp_path, [at(0)], trial_seed=seed, done=False) for seed in range(5)]
    watcher = Watcher(tmp_path)
    watcher.read()
    assert sorted(reads) == sorted(folders)
    reads.clear()
    watcher.read()
    assert reads == []
    append_record(folders[2] / "records.jsonl", at(30))
    assert len(next(one for one in watcher.read().started if one.run.folder == folders[2]).run.records) == 2
    assert reads == [folders[2]]


def test_a_half_written_record_is_read_when_it_is_complete(tmp_path):
    folder = write_run(tmp_path, [at(0), at(30)], done=False)
    whole = (folder / "records.jsonl").read_bytes()
    watcher = Watcher(tmp_path)
    for end in range(len(whole)):
        (folder / "records.jsonl").write_bytes(whole[:end])
        (one,) = watcher.read().started
        assert len(one.run.records) in (0, 1, 2)
    (folder / "records.jsonl").write_bytes(whole)
    (one,) = watcher.read().started
    assert [line["step"] for line in one.run.records] == [0, 30]


def test_removed_and_unreadable_folders_are_reported_as_problems(tmp_path):
    root = tmp_path / "runs"
    gone, broken = write_run(root, [at(0)]), write_run(root, [at(0)], trial_seed=1)
    (root / "sweep.json").write_text('{"algorithms": [[1]]}')
    watcher = Watcher(root)
    assert len(watcher.read().started) == 2
    shutil.rmtree(gone)
    (broken / "trial.json").write_text("{")
    state = watcher.read()
    assert state.started == ()
    assert "run left out" in state.problems[0]
    assert "Expected the fields" in state.problems[1]
    shutil.rmtree(root)
    assert watcher.read().problems == (f"The folder {root} does not exist any more.",)


def test_reading_changes_no_file(tmp_path):
    run(trial(ERM(), steps=5), tmp_path / "done")
    write_run(tmp_path, [at(0)], done=False)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [tmp_path, *tmp_path.rglob("*")]}
    assert len(Watcher(tmp_path).read().started) == 2
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [tmp_path, *tmp_path.rglob("*")]} == before


def test_measurements_of_probes_are_not_kept_in_memory(tmp_path):
    write_run(tmp_path, [at(0, rounds={"gramian": [[1.0]] * 1000})])
    (one,) = Watcher(tmp_path).read().started
    assert "rounds" not in one.run.records[0]


@pytest.mark.parametrize(("steps", "share"), [(300, 31 / 300), (10, 1.0), (0, 1.0)])
def test_the_finished_share_of_a_run_is_between_0_and_1(tmp_path, steps, share):
    folder = write_run(tmp_path, [at(0), at(30)], done=False)
    text = (folder / "trial.json").read_text()
    (folder / "trial.json").write_text(text.replace('"steps": 300', f'"steps": {steps}'))
    (one,) = Watcher(tmp_path).read().started
    assert one.share == pytest.approx(share)
