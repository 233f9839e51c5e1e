"""Looking at a folder of runs again and again: what is seen, what is read, and that nothing is disturbed."""

import shutil
from dataclasses import replace

import pytest
from run_folders import record, write_run
from support import trial

from pogm import ERM
from pogm._system.files import lock_folder
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.records import append_record
from pogm.benchmark.runs.directory import save_sweep
from pogm.benchmark.runs.runner import run
from pogm.data.datasets import dataset_class
from pogm.report import watch
from pogm.report.watch import Watch

SMALL = Sweep(("ERM", "POGM"), (dataset_class("ColoredDigits")(),), configurations=1, trials=1, steps=5)


def at(step, **more):
    return record(step, [0.5] * 3, [0.5] * 3, **more)


@pytest.fixture
def reads(monkeypatch):
    """The folders that were read, as they are read."""
    found = []
    real = watch.read_runs
    monkeypatch.setattr(watch, "read_runs", lambda *folders: (found.extend(folders), real(*folders))[1])
    return found


def test_states_are_those_of_pogm_status_and_a_sweep_knows_what_is_waiting(tmp_path):
    save_sweep(SMALL, tmp_path)
    first, second, third, *rest = SMALL.plan()
    run(first, tmp_path / first.id)
    shutil.copytree(tmp_path / first.id, tmp_path / "copied")  # counts once
    for other in (second, third):
        run(replace(other, precision="fp64"), tmp_path / "elsewhere" / other.id)
        (tmp_path / "elsewhere" / other.id / "done").unlink()
    (tmp_path / "elsewhere" / third.id / "failed.json").write_text('{"error": "out of luck"}')
    with lock_folder(tmp_path / "elsewhere" / second.id):
        glance = Watch(tmp_path).look()
    assert sorted(one.state for one in glance.begun) == ["done", "failed", "running"]
    assert [one.id for one in glance.waiting] == [one.id for one in (second, third, *rest)]
    assert glance.remarks == ()


def test_plain_runs_at_any_depth_are_seen_without_a_sweep(tmp_path):
    write_run(tmp_path / "deep" / "down", [at(0)])
    write_run(tmp_path / "deep", [at(0)], trial_seed=1, done=False)
    glance = Watch(tmp_path).look()
    assert [one.state for one in glance.begun] == ["done", "interrupted"]
    assert glance.waiting == ()


def test_only_what_has_changed_is_read_again(tmp_path, reads):
    folders = [write_run(tmp_path, [at(0)], trial_seed=seed, done=False) for seed in range(5)]
    looking = Watch(tmp_path)
    looking.look()
    assert sorted(reads) == sorted(folders)
    reads.clear()
    looking.look()
    assert reads == []
    append_record(folders[2] / "records.jsonl", at(30))
    assert len(next(one for one in looking.look().begun if one.run.folder == folders[2]).run.records) == 2
    assert reads == [folders[2]]


def test_a_record_half_written_is_read_when_it_is_whole(tmp_path):
    folder = write_run(tmp_path, [at(0), at(30)], done=False)
    whole = (folder / "records.jsonl").read_bytes()
    looking = Watch(tmp_path)
    for end in range(len(whole)):
        (folder / "records.jsonl").write_bytes(whole[:end])
        (one,) = looking.look().begun
        assert len(one.run.records) in (0, 1, 2)
    (folder / "records.jsonl").write_bytes(whole)
    (one,) = looking.look().begun
    assert [line["step"] for line in one.run.records] == [0, 30]


def test_what_vanishes_or_cannot_be_read_is_said_and_survived(tmp_path):
    root = tmp_path / "runs"
    gone, broken = write_run(root, [at(0)]), write_run(root, [at(0)], trial_seed=1)
    (root / "sweep.json").write_text('{"algorithms": [[1]]}')
    looking = Watch(root)
    assert len(looking.look().begun) == 2
    shutil.rmtree(gone)
    (broken / "trial.json").write_text("{")
    glance = looking.look()
    assert glance.begun == ()
    assert glance.remarks[0] == "1 run folder could not be read."
    assert "Expected the fields" in glance.remarks[1]
    shutil.rmtree(root)
    assert looking.look().remarks == (f"There is no folder {root} any more.",)


def test_looking_changes_nothing_in_the_folder(tmp_path):
    run(trial(ERM(), steps=5), tmp_path / "done")
    write_run(tmp_path, [at(0)], done=False)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [tmp_path, *tmp_path.rglob("*")]}
    assert len(Watch(tmp_path).look().begun) == 2
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [tmp_path, *tmp_path.rglob("*")]} == before


def test_what_a_probe_measured_is_not_kept_in_memory(tmp_path):
    write_run(tmp_path, [at(0, rounds={"gramian": [[1.0]] * 1000})])
    (one,) = Watch(tmp_path).look().begun
    assert "rounds" not in one.run.records[0]


@pytest.mark.parametrize(("steps", "share"), [(300, 31 / 300), (10, 1.0), ("many", 1.0), (0, 1.0)])
def test_the_share_of_a_run_that_is_done_is_between_0_and_1(tmp_path, steps, share):
    folder = write_run(tmp_path, [at(0), at(30)], done=False)
    text = (folder / "trial.json").read_text()
    (folder / "trial.json").write_text(text.replace('"steps": 300', f'"steps": {steps!r}'.replace("'", '"')))
    (one,) = Watch(tmp_path).look().begun
    assert one.share == pytest.approx(share)
