"""Full disks: runs and sweeps are interrupted, and the same command continues them."""

import errno

import pytest
from processes import pogm, records, start
from support import trial

from pogm import ERM
from pogm._system.errors import is_disk_full
from pogm.benchmark.executors.worker import run_job
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.sweep_directory import load_sweep


def test_a_sweep_on_a_full_disk_stops_with_interrupted_runs_that_can_be_resumed(tmp_path):
    out = tmp_path / "sweep"
    words = ("--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", 1, "--trials", 1)
    more = ("--steps", 12, "--evaluate-every", 5, "--checkpoint-seconds", 0, "--device", "cpu", "--workers", 1)
    end = pogm("sweep", *words, *more, "--out", out, fault="full@write:12")
    assert end.code == 3
    assert "Expected more space for 3 runs that are left" in end.err  # no finished run says how much
    assert "MiB free" in end.err
    assert "No space left on device" in end.err
    assert f"Continue with: pogm resume {out}" in end.err
    assert "Traceback" not in end.err
    trials = load_sweep(out).plan()
    assert sorted(state_of(out / one.id) for one in trials) == ["interrupted", "waiting", "waiting"]
    assert not list(out.rglob("failed.json"))
    begun = next(one for one in trials if state_of(out / one.id) == "interrupted")
    assert run_job([begun], out, RunOptions()) == [None]  # as a worker of the resumed sweep does
    run(begun, tmp_path / "alone")
    assert records(out / begun.id) == records(tmp_path / "alone")


def test_a_run_on_a_full_disk_has_not_failed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    one = trial(ERM())
    with monkeypatch.context() as patch:
        patch.setattr("pogm.benchmark.runs.selected_model.write_atomic", full)
        with pytest.raises(OSError, match="No space left") as error:
            run(one, tmp_path / "run")
    assert is_disk_full(error.value)
    assert state_of(tmp_path / "run") == "interrupted"
    run(one, tmp_path / "run")
    assert state_of(tmp_path / "run") == "done"


def test_a_run_finishes_although_its_output_cannot_be_written(tmp_path):
    words = ("run", "--dataset", "ColoredDigits", "--algorithm", "ERM", "--test-domain", "0", "--steps", 3)
    command = start(*words, "--device", "cpu", "--out", tmp_path / "run", output="/dev/full")
    assert command.wait().code == 0
    assert (tmp_path / "run" / "done").exists()
