"""One run in several processes: it gives the results of one process, also after stops, kills and resumptions."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import Finished, pogm, records, start_together, together, weights
from safetensors.torch import load as load_tensors

WORDS = ("run", "--dataset", "RotatedDigits", "--test-domain", "75", "--precision", "fp64", "--device", "cpu")
WORDS += ("--steps", "21", "--evaluate-every", "10", "--checkpoint-seconds", "0", "--timeout-seconds", "60")
POGM = (*WORDS, "--algorithm", "POGM", "--set", "inner_steps=2")


def assert_alike(folder: Path, other: Path, tolerance: float = 1e-9) -> None:
    """Assert that two finished runs have the same records, checkpoint and metrics of the model, up to rounding."""
    assert (folder / "done").exists()
    assert (other / "done").exists()
    for first, second in zip(records(folder), records(other), strict=True):
        assert first["accuracy"] == second["accuracy"]
        assert first["metrics"].keys() == second["metrics"].keys()
        for name, value in first["metrics"].items():
            assert value == pytest.approx(second["metrics"][name], rel=tolerance, abs=tolerance, nan_ok=True), name
    left, right = load_tensors(weights(folder)), load_tensors(weights(other))
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        torch.testing.assert_close(leaf, right[name], rtol=tolerance, atol=tolerance)
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (folder, other))
    assert first["selection"]["step"] == second["selection"]["step"]
    for name, splits in first["domains"].items():
        for split, found in splits.items():
            assert found["confusion"] == second["domains"][name][split]["confusion"]
            assert found["nll"] == pytest.approx(second["domains"][name][split]["nll"], rel=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """A run of POGM in one process."""
    folder: Path = tmp_path_factory.mktemp("alone") / "run"
    assert pogm(*POGM, "--out", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """The same run in three processes, with two, two and one of its five domains."""
    folder: Path = tmp_path_factory.mktemp("three") / "run"
    assert [finished.code for finished in together(3, *POGM, "--out", folder)] == [0, 0, 0]
    return folder


def test_torchrun_starts_the_processes_and_restarts_them(tmp_path):
    """Both processes are killed after 15 rounds; ten rounds are left after the restart."""
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "-m", "pogm")
    words = (sys.executable, "-m", *torchrun, *WORDS, "--algorithm", "ERM", "--out", tmp_path / "two")
    environment = os.environ | {"POGM_FAULT": "kill@step:15"}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]  # of torch 2.10
    steps = [line.split()[1] for line in lines]
    assert steps == ["0/20", "10/20", "20/20"]  # printed by one process
    assert pogm(*WORDS, "--algorithm", "ERM", "--out", tmp_path / "one").code == 0
    assert_alike(tmp_path / "two", tmp_path / "one")


def test_domains_over_processes_give_the_same_results(alone, three):
    assert_alike(three, alone)


@pytest.mark.parametrize(("spread", "world"), [("both", 4), ("samples", 2)])
def test_samples_over_processes_give_the_same_results(tmp_path, alone, spread, world):
    finished = together(world, *POGM, "--spread", spread, "--out", tmp_path / "run")
    assert [f.code for f in finished] == [0] * world
    assert_alike(tmp_path / "run", alone)


# MixStyle divides by deviations that can be nearly zero. In a longer run rounding errors grew 2,500-fold in ten rounds,
# so this one is short.
MODIFIED = {
    "minibatches and weights": ("--algorithm", "Reptile", "--with", "Mixup", "--with", "SWAD", "--with", "Augment"),
    "passes": (
        *("--algorithm", "POGM", "--with", "MixStyle", "--set", "centre=mean", "--steps", "11"),
        *("--set", "network=small_cnn", "--set", "dropout=0.2"),
    ),
}


@pytest.mark.parametrize("what", MODIFIED)
def test_modifiers_give_the_same_results_in_two_processes(tmp_path, what):
    words = (*WORDS, *MODIFIED[what])
    assert [f.code for f in together(2, *words, "--out", tmp_path / "two")] == [0, 0]
    assert pogm(*words, "--out", tmp_path / "one").code == 0
    assert_alike(tmp_path / "two", tmp_path / "one")


def test_a_killed_process_ends_all_and_the_next_start_resumes(tmp_path, three):
    folder = tmp_path / "run"
    began = time.monotonic()
    finished = together(3, *POGM, "--out", folder, faults={1: "kill@step:8"})
    assert [f.code for f in finished] == [1, -9, 1]
    assert time.monotonic() - began < 60
    for rank in (0, 2):
        assert f"rank {rank}: Expected all 3 processes to answer within 60 s; found that rank 1 does not" in (
            finished[rank].err
        )
        assert "Traceback" not in finished[rank].err
    assert 1 <= len(records(folder)) < 3
    assert [f.code for f in together(3, *POGM, "--out", folder)] == [0, 0, 0]
    assert records(folder) == records(three)
    assert weights(folder) == weights(three)  # to the last bit


def test_a_process_that_hangs_ends_all_within_the_timeout(tmp_path):
    words = (*POGM, "--timeout-seconds", "6", "--out", tmp_path / "run")
    started = start_together(2, *words, faults={1: "stop@step:5"})
    first = started[0].wait()
    started[1].process.kill()
    started[1].wait()
    assert first.code == 1
    assert "to answer within 6 s; found that rank 1 does not" in first.err


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, list[Finished]]:
    """The same run in three processes. One of them gets a signal after six rounds."""
    folder: Path = tmp_path_factory.mktemp("stopped") / "run"
    return folder, together(3, *POGM, "--out", folder, faults={2: "term@step:6"})


def test_a_signal_to_one_process_stops_all_with_one_checkpoint(stopped):
    folder, finished = stopped
    assert [f.code for f in finished] == [75, 75, 75]
    assert "Stopped by SIGTERM" in finished[0].err
    assert all(f.err == "" for f in finished[1:])  # one process prints the message
    assert any(folder.glob("checkpoints/*.json"))
    assert not (folder / "done").exists()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_run_resumes_in_another_number_of_processes(tmp_path, alone, stopped, world):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0], folder)
    if world == 1:
        assert pogm("resume", folder, "--device", "cpu").code == 0
    else:
        assert [f.code for f in together(world, "resume", folder, "--device", "cpu")] == [0] * world
    assert_alike(folder, alone)


def test_a_finished_run_is_not_changed(three):
    before = (three / "records.jsonl").stat().st_mtime_ns
    assert [f.code for f in together(2, *POGM, "--out", three)] == [0, 0]
    assert (three / "records.jsonl").stat().st_mtime_ns == before


REFUSED = {
    "an algorithm that looks at all domains at once": (2, ("--algorithm", "CORAL"), "found CORAL"),
    "a modifier that looks at a whole minibatch": (2, ("--algorithm", "POGM", "--with", "CIRL"), "found CIRL"),
    "a probe": (2, ("--algorithm", "POGM", "--probe-every", "1"), "found a probe"),
    "styles mixed over all domains": (
        2,
        ("--algorithm", "POGM", "--with", "MixStyle", "--set", "network=small_cnn"),
        "found MixStyle",
    ),
    "one dropout mask for all domains": (
        2,
        ("--algorithm", "POGM", "--set", "inner_steps=2", "--set", "dropout=0.1", "--spread", "domains"),
        "found dropout",
    ),
    "dropout": (2, ("--algorithm", "ERM", "--set", "dropout=0.1"), "found dropout"),
    "a batch that does not divide": (3, ("--algorithm", "ERM"), "that 3 processes can share; found 32"),
    "more processes than domains": (6, ("--algorithm", "POGM", "--spread", "domains"), "found 6"),
    "too few for both": (2, ("--algorithm", "POGM", "--spread", "both"), "found 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_would_give_other_results_is_an_error_before_anything_is_written(tmp_path, name):
    world, words, message = REFUSED[name]
    finished = together(world, *WORDS, *words, "--out", tmp_path / "run")
    assert [f.code for f in finished] == [2] * world
    assert message in finished[0].err
    assert all(f.err == "" for f in finished[1:])
    assert not (tmp_path / "run").exists()


def test_a_sweep_under_torchrun_is_an_error(tmp_path):
    words = ("sweep", "--algorithms", "ERM", "--datasets", "RotatedDigits", "--out", tmp_path / "sweep")
    finished = together(2, *words)
    assert [f.code for f in finished] == [2, 2]
    assert "Start it without torchrun" in finished[0].err


def test_spread_without_torchrun_is_an_error(tmp_path):
    finished = pogm(*POGM, "--spread", "domains", "--out", tmp_path / "run")
    assert finished.code == 2
    assert "Expected several processes, started by torchrun" in finished.err
