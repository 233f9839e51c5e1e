"""Test that every tracker logs the numbers of records.jsonl, each step once."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import _context
from read_back import READERS, Logged
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.cli import main
from pogm.trackers import all_trackers, check_trackers
from pogm.trackers.base import scalars
from pogm.trackers.mlflow import escape_name

TRACKERS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"needs the package {name}"))
    for name in READERS
]
ONE = trial(POGM(), "ColoredDigits", steps=51, evaluate_every=10)  # domains with names such as +90%


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


def read_records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def read_expected(folder: Path, *, clock: bool = True) -> Logged:
    """Return all numbers of records.jsonl by name and step."""
    config = json.loads((folder / "trial.json").read_text())
    named = [
        (name, line["step"], value) for line in read_records(folder) for name, value in scalars(line, config).items()
    ]
    return sorted(row for row in named if clock or row[0] != "seconds_per_step")


def read_logged(tracker: str, folder: Path, *, clock: bool = True) -> Logged:
    end = time.monotonic() + 10  # the process of W&B may still be writing
    while len(rows := READERS[tracker](folder)) < len(read_expected(folder)) and time.monotonic() < end:
        time.sleep(0.01)
    return sorted(row for row in rows if clock or row[0] != "seconds_per_step")


def round_for(rows: Logged, tracker: str) -> Logged:
    """Round to float32 for TensorBoard, which stores 32 bits."""
    return [(name, step, float(np.float32(value)) if tracker == "tensorboard" else value) for name, step, value in rows]


def test_scalar_names_have_domain_and_split():
    config = {"domains": ["a", "b", "c"], "trial": {"test_domains": [1]}}
    metrics = {"loss": 0.5, "cosine": [1.0, float("nan")], "other": [1, 2, 3]}
    record = {"step": 3, "accuracy": {"in": [0.1, 0.2, 0.3]}, "metrics": metrics, "status": "ok", "memory_gb": None}
    found = {f"accuracy/in/{name}": value for name, value in (("a", 0.1), ("b", 0.2), ("c", 0.3))}
    found |= {"metrics/loss": 0.5, "metrics/cosine/a": 1.0}
    found |= {"metrics/other/0": 1, "metrics/other/1": 2, "metrics/other/2": 3}
    assert scalars(record, config) == found
    assert scalars(record | {"swad": True}, config) == {f"swad/{name}": value for name, value in found.items()}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_tracker_logs_all_records(tmp_path, tracker):
    run(ONE, tmp_path / "run", RunOptions(trackers=(tracker,)))
    assert read_logged(tracker, tmp_path / "run") == round_for(read_expected(tmp_path / "run"), tracker)
    assert ("accuracy/out/+90%", 50) in {row[:2] for row in read_logged(tracker, tmp_path / "run")}


def run_and_kill(step: int, tracker: str, folder: Path) -> None:
    """Run a trial and kill the process after the tracker has logged this step."""

    def die(record):
        while record["step"] == step:
            with suppress(ValueError):  # the file is being written
                if any(row[1] == step for row in READERS[tracker](folder)):
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)

    os.environ.pop("WANDB_SERVICE", None)  # the service of the parent process
    run(ONE, folder, RunOptions(trackers=(tracker,), checkpoint_seconds=0), die)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_killed_and_resumed_run_logs_every_step_once(tmp_path, tracker):
    child = _context.Process(target=run_and_kill, args=(30, tracker, tmp_path / "run"))
    child.start()
    child.join(180)  # a first import of wandb can take a minute on a busy machine
    assert child.exitcode == -signal.SIGKILL
    assert [line["step"] for line in read_records(tmp_path / "run")] == [0, 10, 20, 30]
    run(ONE, tmp_path / "run", RunOptions(trackers=(tracker,)))  # computes step 30 again
    assert read_logged(tracker, tmp_path / "run", clock=False) == round_for(
        read_expected(tmp_path / "run", clock=False), tracker
    )


@pytest.mark.parametrize("tracker", TRACKERS)
def test_late_tracker_receives_earlier_records(tmp_path, tracker):
    class EnoughError(Exception):
        pass

    def stop(record):
        if record["step"] == 20:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(ONE, tmp_path / "run", RunOptions(checkpoint_seconds=0), stop)
    run(ONE, tmp_path / "run", RunOptions(trackers=(tracker,)))
    assert read_logged(tracker, tmp_path / "run") == round_for(read_expected(tmp_path / "run"), tracker)


def test_trials_of_a_batch_are_separate_runs(tmp_path):
    names = tuple(name for name in READERS if find_spec(name))
    trials = [trial(ERM(), seed=seed, steps=11) for seed in (0, 1)]
    assert run_batch(trials, [tmp_path / one.id for one in trials], RunOptions(trackers=names)) == [None, None]
    for one in trials:
        for name in names:
            assert read_logged(name, tmp_path / one.id) == round_for(read_expected(tmp_path / one.id), name)


def test_command_line_accepts_several_trackers_and_refuses_missing_ones(tmp_path, capsys, monkeypatch):
    words = ["run", "--dataset", "RotatedDigits", "--algorithm", "ERM", "--test-domain", "0", "--steps", "3"]
    words += ["--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([*words, "--track", "tensorbord"]) == 2
    assert "Did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr("pogm.trackers.find_spec", lambda name: None if name == "wandb" else find_spec(name))
    assert main([*words, "--track", "wandb"]) == 2
    assert "found none. Install it: pip install 'pogm[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"pip install 'pogm\[wandb\]'"):
        check_trackers(["wandb"])
    names = [name for name in READERS if name != "wandb" and find_spec(name)]
    assert main([*words, *(word for name in names for word in ("--track", name))]) == 0
    assert all(READERS[name](tmp_path / "run") for name in names)


def test_registry_has_every_tracker():
    assert set(all_trackers()) == set(READERS)


def test_escaped_mlflow_names_are_unique():
    names = ["+90%", "*90%", ":2b:90:25:", "a b", "a_b", "naïve"]
    assert len({escape_name(name) for name in names}) == len(names)
    assert escape_name("accuracy/in/75") == "accuracy/in/75"
    assert Counter(escape_name("+90%"))[":"] == 4
