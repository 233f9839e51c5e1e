"""The runner with one trial: kills, signals, damaged files and full disks do not change the result."""

import dataclasses
import errno
import json
import os
import random
import resource
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from processes import SHORT, pogm, records, running, weights
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import DataError, IntegrityError, MemoryLimitError
from pogm.benchmark.results.record_file import append_record
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.cli import main
from pogm.engine.session import Session

METHODS = {
    "ERM": ("--algorithm", "ERM"),
    "Fish": ("--algorithm", "Fish"),
    "Fishr": ("--algorithm", "Fishr", "--set", "penalty_anneal_iters=7", "--probe-every", 3),
    "POGM": ("--algorithm", "POGM", "--set", "inner_steps=2", "--with", "Mixup"),
}
EVERY_SAVE = RunOptions(checkpoint_seconds=0)


def command(folder: Path, *words: object, steps: int = 41) -> tuple[object, ...]:
    """Return the words of a command: ``run`` at first, ``resume`` if there is a run to resume."""
    if (folder / "trial.json").exists():
        return ("resume", folder, "--checkpoint-seconds", 0, "--device", "cpu")
    return ("run", "--dataset", "RotatedDigits", *SHORT, "--steps", steps, *words, "--out", folder)


def assert_same(folder: Path, clean: Path) -> None:
    """Assert that two finished runs have the same records, last checkpoint, selected model and metrics, bit for bit."""
    assert (folder / "done").exists()
    assert records(folder) == records(clean)
    assert weights(folder) == weights(clean)
    assert (folder / "model/model.json").read_bytes() == (clean / "model/model.json").read_bytes()  # with its checksum
    assert (folder / "metrics.json").read_bytes() == (clean / "metrics.json").read_bytes()
    assert len(list((folder / "model").iterdir())) == 2
    assert not list(folder.rglob("*.part"))


@pytest.fixture(scope="module")
def run_cleanly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns a short run of a method without a fault."""

    @cache
    def do(method: str) -> Path:
        folder = tmp_path_factory.mktemp("clean") / "run"
        assert pogm(*command(folder, *METHODS[method])).code == 0
        return folder

    return do


@pytest.fixture(scope="module")
def clean(run_cleanly: Callable[[str], Path]) -> Path:
    """A short run of ERM without a fault."""
    return run_cleanly("ERM")


# Kills.


@pytest.mark.parametrize("method", METHODS)
def test_resume_after_random_kills_gives_identical_records_and_weights(tmp_path, run_cleanly, method):
    folder = tmp_path / "killed"
    draw, ends = random.Random(method), []
    for _ in range(5):
        point, most = draw.choice([("step", 9), ("write", 4), ("replace", 4)])
        fault = f"kill@{point}:{draw.randint(1, most)}"
        ends.append(pogm(*command(folder, *METHODS[method]), fault=fault).code)
    assert ends == [-signal.SIGKILL] * 5
    assert pogm(*command(folder, *METHODS[method])).code == 0
    assert_same(folder, run_cleanly(method))


@pytest.mark.filterwarnings("ignore::pogm.engine.checkpoint.CheckpointWarning")
def test_resume_from_the_files_at_any_write_gives_identical_records_and_weights(tmp_path, monkeypatch, capsys):
    """At every point where a fault can be injected, the folder is copied: a kill at this point would leave the copy."""
    words = ("--algorithm", "POGM", "--set", "inner_steps=5", "--evaluate-every", 3)
    clean, passed, copies = tmp_path / "clean", Counter(), []

    def copy_folder(point: str) -> None:
        passed[point] += 1
        copies.append(tmp_path / f"{point}{passed[point]}")
        shutil.copytree(clean, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr("pogm._system.files.fault_point", copy_folder)
        patch.setattr("pogm.benchmark.results.record_file.fault_point", copy_folder)
        assert main([*map(str, command(clean, *words, steps=7))]) == 0
    assert passed == {"write": 14, "replace": 14, "append": 3}
    for folder in copies:
        assert main([*map(str, command(folder, *words, steps=7))]) == 0, (folder.name, capsys.readouterr().err)
        assert_same(folder, clean)


def test_a_kill_during_the_second_checkpoint_of_a_step_leaves_the_first_one_intact(tmp_path, clean):
    """The run is stopped before an evaluation, and killed while it saves after it: both checkpoints are of step 1."""
    folder = tmp_path / "run"
    assert pogm(*command(folder, *METHODS["ERM"]), fault="term@step:1").code == 75
    assert pogm(*command(folder), fault="kill@write:3").code == -signal.SIGKILL
    assert pogm(*command(folder)).code == 0
    assert_same(folder, clean)


def test_an_incomplete_record_is_written_again(tmp_path, clean):
    folder = tmp_path / "run"
    assert pogm(*command(folder, *METHODS["ERM"]), fault="kill@step:35").code == -signal.SIGKILL
    with open(folder / "records.jsonl", "ab") as file:
        file.write(b'{"step": 40, "accura')
    end = pogm(*command(folder))
    assert (end.code, "skipped 1 unreadable line" in end.err) == (0, True)
    assert_same(folder, clean)


# Extension.


@pytest.mark.parametrize("method", ["ERM", "POGM"])
def test_an_extended_run_equals_one_that_was_begun_with_more_steps(tmp_path, run_cleanly, method):
    long, short = run_cleanly(method), tmp_path / "short"
    assert pogm(*command(short, *METHODS[method], steps=21)).code == 0
    extended = ("resume", short, "--steps", 41, "--device", "cpu", "--checkpoint-seconds", 0)
    assert pogm(*extended, fault="kill@step:7").code == -signal.SIGKILL
    end = pogm("resume", short, "--device", "cpu", "--checkpoint-seconds", 0)
    assert end.code == 0, end.err
    assert records(short) == records(long)
    assert weights(short) == weights(long)
    again = pogm(*extended)
    assert (again.code, "Expected --steps above 41" in again.err) == (2, True)


# Damaged files.


def test_a_run_with_a_damaged_checkpoint_resumes_from_the_one_before(tmp_path, clean):
    folder = tmp_path / "run"
    assert pogm(*command(folder, *METHODS["ERM"]), fault="kill@step:35").code == -signal.SIGKILL
    newest = max(folder.glob("checkpoints/*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    end = pogm(*command(folder))
    assert end.code == 0
    assert newest.name in end.err
    assert end.out.startswith("step 30/40")  # evaluated again
    assert_same(folder, clean)


def test_without_an_intact_checkpoint_the_exit_code_is_6_and_nothing_is_overwritten(tmp_path, clean):
    folder = tmp_path / "run"
    assert pogm(*command(folder, *METHODS["ERM"]), fault="kill@step:35").code == -signal.SIGKILL
    before = records(folder)
    for path in folder.glob("checkpoints/*.safetensors"):
        path.write_bytes(b"")
    end = pogm(*command(folder))
    assert end.code == 6
    assert "Traceback" not in end.err
    assert records(folder) == before
    assert "SHA-256" in json.loads((folder / "failed.json").read_text())["error"]


def test_lost_records_are_an_error(tmp_path):
    folder = tmp_path / "run"
    erm = trial(ERM())
    run(erm, folder, EVERY_SAVE)
    (folder / "done").unlink()
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(lines[0] + lines[2])
    with pytest.raises(IntegrityError, match="found others"):
        run(erm, folder, EVERY_SAVE)


# Signals.


@pytest.mark.parametrize(("name", "code"), [("term", 75), ("usr1", 75), ("int", 130), ("hup", 129)])
def test_a_signal_stops_after_the_step_with_a_checkpoint_and_says_how_to_resume(tmp_path, clean, name, code):
    folder = tmp_path / "my run"
    end = pogm(*command(folder, *METHODS["ERM"]), fault=f"{name}@step:17")
    assert end.code == code
    assert f"Stopped by SIG{name.upper()}" in end.err
    assert f"pogm resume '{folder}'" in end.err
    assert max(folder.glob("checkpoints/*.json")).stem == "00000017-00000011"
    end = pogm(*command(folder))
    assert (end.code, end.out.splitlines()[0].split()[1]) == (0, "20/40")
    assert_same(folder, clean)


def test_a_second_signal_ends_the_process_at_once(tmp_path, clean):
    folder = tmp_path / "run"
    end = pogm(*command(folder, *METHODS["ERM"]), fault="term@step:17,term@write:11")
    assert end.code == 128 + signal.SIGTERM
    assert max(folder.glob("checkpoints/*.json")).stem == "00000011-00000011"
    assert pogm(*command(folder)).code == 0
    assert_same(folder, clean)


def test_a_run_in_use_is_refused_and_its_lock_is_free_after_a_signal(tmp_path):
    with running(tmp_path / "run") as command_of_run:
        pid = command_of_run.process.pid
        second = pogm("resume", tmp_path / "run")
        assert second.code == 2
        assert f"in use by process {pid} on {socket.gethostname()}" in second.err
        os.kill(pid, signal.SIGTERM)
        assert command_of_run.wait().code == 75
    assert pogm("resume", tmp_path / "run", fault="term@step:1").code == 75


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    with running(tmp_path / "run") as command_of_run:
        command_of_run.process.kill()
        assert command_of_run.wait().code == -signal.SIGKILL
    assert pogm("resume", tmp_path / "run", fault="term@step:1").code == 75


# Full disks and full memory.


@pytest.mark.parametrize(
    ("fault", "path", "left"),
    [
        ("full@write:1", "trial.json", []),
        ("full@write:13", "00000021-00000021.safetensors", ["00000001-00000001", "00000011-00000011"]),
        ("full@write:11", "weights-00000020.safetensors", ["00000001-00000001", "00000011-00000011"]),
        ("full@append:3", "records.jsonl", ["00000001-00000001", "00000011-00000011"]),
    ],
)
def test_a_full_disk_stops_the_run_with_path_and_bytes_and_keeps_earlier_files(tmp_path, clean, fault, path, left):
    folder = tmp_path / "run"
    end = pogm(*command(folder, *METHODS["ERM"]), fault=fault)
    assert end.code == 3
    assert "bytes to" in end.err
    assert f"{path}; found: No space left on device" in end.err
    assert "Traceback" not in end.err
    assert sorted(manifest.stem for manifest in folder.glob("checkpoints/*.json")) == left
    assert pogm(*command(folder, *METHODS["ERM"])).code == 0
    assert_same(folder, clean)


def test_a_record_that_is_written_in_part_is_an_error(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"step": 0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(DataError, match=rf"bytes to {path}; found: 8 bytes written"):
            append_record(path, {"step": 1, "epoch": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_out_of_memory_error_has_the_peak_and_says_what_to_change(tmp_path, monkeypatch):
    def full(session, probing=False):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nand more")

    monkeypatch.setattr(Session, "step", full)
    expected = r"peak \d+\.\d GiB.* batches of 32 from each of 5 .*20 GiB\. Start .*batch_size.*--micro-batch"
    with pytest.raises(MemoryLimitError, match=expected) as error:
        run(trial(ERM()), tmp_path / "run")
    assert error.value.exit_code == 5
    assert "batch_size" in json.loads((tmp_path / "run" / "failed.json").read_text())["error"]


def test_a_batch_that_does_not_fit_into_memory_is_a_memory_error(tmp_path):
    training = dataclasses.replace(trial(ERM()).training)
    object.__setattr__(training, "batch_size", 10**13)  # above the limit of the field
    with pytest.raises(MemoryLimitError, match="batch_size"):
        run(trial(ERM(), training=training), tmp_path / "run")


def test_a_bug_is_noted_in_the_run_directory_until_the_next_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Session, "scores", lambda session: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(trial(ERM()), tmp_path / "run")
    assert "ZeroDivisionError" in json.loads((tmp_path / "run" / "failed.json").read_text())["error"]
    run(trial(ERM()), tmp_path / "run")
    assert not (tmp_path / "run" / "failed.json").exists()


def test_a_bad_sector_is_noted_as_one_message_without_a_traceback(tmp_path, monkeypatch):
    def fail(session):
        raise OSError(errno.EIO, "Input/output error", "images.bin")

    monkeypatch.setattr(Session, "scores", fail)
    with pytest.raises(OSError, match="Input/output"):
        run(trial(ERM()), tmp_path / "run")
    error = json.loads((tmp_path / "run" / "failed.json").read_text())["error"]
    assert error.startswith(
        "Expected to read and write files; found: [Errno 5] Input/output error: 'images.bin'. Check"
    )


# Repeatability.


def test_the_same_seed_gives_the_same_records_and_another_seed_other_ones(tmp_path):
    for name, seed in (("once", 1), ("twice", 1), ("other", 2)):
        run(trial(POGM(), seed=seed), tmp_path / name)
    assert_same(tmp_path / "once", tmp_path / "twice")
    assert records(tmp_path / "other") != records(tmp_path / "once")


def test_a_finished_run_is_not_changed(tmp_path):
    run(trial(ERM()), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    run(trial(ERM()), tmp_path / "run", on_evaluation=lambda record: pytest.fail("evaluated again"))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_clock_that_jumps_back_does_not_affect_durations(tmp_path, monkeypatch):
    jumps = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    run(trial(ERM()), tmp_path / "run", EVERY_SAVE)
    lines = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 10, 20]
    assert all(line["seconds_per_step"] > 0 for line in lines)


def test_signal_handlers_and_threads_are_restored_after_a_run(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    threads = torch.get_num_threads()
    run(trial(ERM()), tmp_path / "run", RunOptions(threads=threads + 1))
    assert torch.get_num_threads() == threads
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == handlers
