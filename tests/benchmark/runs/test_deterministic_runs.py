"""Deterministic runs: their provenance, their resumption, and repetitions on a GPU bit for bit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch
from processes import SHORT, model_weights, pogm, records, weights
from support import needs_gpu, trial

from pogm import ERM
from pogm._system.determinism import FIXED_WORKSPACES, WORKSPACE
from pogm._system.errors import StoppedError, UsageError
from pogm.benchmark.results.record_digest import TRIAL
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import load_trial, write_trial
from pogm.benchmark.runs.provenance import DeterminismWarning, read_provenance, stays_deterministic
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.cli.options import Execution
from pogm.engine.session import Engine
from pogm.report.runs import write_report

os.environ.setdefault(WORKSPACE, FIXED_WORKSPACES[0])  # set during collection, before any test uses CUDA

GPU = {"pogm": "1", "torch": "2.11", "device": "NVIDIA H200", "processes": 1, "deterministic": True}
CPU = GPU | {"device": "cpu"}
FOLDER = Path("runs/one")


# Provenance.


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_provenance_contains_the_option(tmp_path, deterministic):
    run(trial(ERM()), tmp_path / "run", RunOptions(engine=Engine(deterministic=deterministic)))
    assert read_provenance("deterministic", tmp_path / "run") is deterministic
    text = write_report(read_runs(tmp_path), tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"deterministic {deterministic}" in text


@pytest.mark.parametrize("verb", ["experiment", "measure", "resume", "run", "sweep", "train"])
def test_all_commands_that_train_have_the_option(verb):
    command = import_module(f"pogm.cli.{verb}").COMMAND
    assert command.trains
    assert Execution in [field.metadata.get("group") for field in dataclasses.fields(command)]
    assert not Execution().device.deterministic


def test_runs_and_sweeps_record_the_option(tmp_path):
    words = ("--steps", 3, "--evaluate-every", 2, "--device", "cpu", "--deterministic")
    one = ("run", "--dataset", "RotatedDigits", "--algorithm", "ERM", "--test-domain", "75")
    many = ("--algorithms", "ERM", "--workers", 1)
    assert pogm(*one, *words, "--out", tmp_path / "run").code == 0
    sweep = ("sweep", *many, "--datasets", "ColoredDigits", "--configurations", 1, "--trials", 1)
    assert pogm(*sweep, *words, "--out", tmp_path / "sweep").code == 0
    for folder in ("run", "sweep"):
        assert read_provenance("deterministic", tmp_path / folder) is True


# Resumption.


def test_resume_without_the_option_is_an_error_on_a_gpu():
    with pytest.raises(UsageError, match="Expected --deterministic, with which the run in runs/one began"):
        stays_deterministic(FOLDER, GPU, GPU | {"deterministic": False})
    with pytest.raises(UsageError, match="Expected --deterministic"):
        stays_deterministic(FOLDER, CPU, GPU | {"deterministic": False})


def test_on_a_cpu_the_option_has_no_effect():
    assert stays_deterministic(FOLDER, CPU, CPU | {"deterministic": False})
    assert stays_deterministic(FOLDER, CPU | {"deterministic": False}, CPU)


def test_on_a_cpu_another_number_of_threads_ends_determinism():
    with pytest.warns(DeterminismWarning, match="threads 8"):
        assert not stays_deterministic(FOLDER, CPU | {"threads": 1}, CPU | {"threads": 8})
    assert stays_deterministic(FOLDER, GPU | {"threads": 1}, GPU | {"threads": 8})


def test_a_run_that_began_without_the_option_does_not_become_deterministic():
    with pytest.warns(DeterminismWarning, match="began without --deterministic"):
        assert stays_deterministic(FOLDER, GPU | {"deterministic": False}, GPU)
    old = {name: value for name, value in GPU.items() if name != "deterministic"}  # of an earlier version
    with pytest.warns(DeterminismWarning, match="began without --deterministic"):
        assert stays_deterministic(FOLDER, old, GPU)
    assert stays_deterministic(FOLDER, old, GPU | {"deterministic": False})


def test_other_software_or_another_gpu_ends_determinism_with_a_warning(tmp_path):
    one = trial(ERM())
    write_trial(tmp_path, one, GPU)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "1.json").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_trial(tmp_path, one, GPU)
    with pytest.warns(DeterminismWarning, match=r"torch 2.12 \(was 2.11\), device NVIDIA B200 \(was NVIDIA H200\)"):
        write_trial(tmp_path, one, GPU | {"torch": "2.12", "device": "NVIDIA B200"})
    saved = json.loads((tmp_path / TRIAL).read_text())["provenance"]
    assert saved == GPU | {"deterministic": False}
    assert load_trial(tmp_path).id == one.id


def test_a_run_without_a_checkpoint_can_start_again_without_the_option(tmp_path):
    """The error about a nondeterministic operation advises this."""
    one = trial(ERM())
    write_trial(tmp_path, one, GPU)
    write_trial(tmp_path, one, GPU | {"deterministic": False})
    assert read_provenance("deterministic", tmp_path) is False


def test_resume_reads_the_option_from_the_provenance(tmp_path):
    folder = tmp_path / "run"
    words = ("--dataset", "RotatedDigits", "--algorithm", "ERM", *SHORT, "--steps", 21, "--deterministic")
    assert pogm("run", *words, "--out", folder, fault="kill@step:15").code == -signal.SIGKILL
    path = folder / TRIAL
    saved = json.loads(path.read_text())
    saved["provenance"]["device"] = (
        "NVIDIA H200"  # as if it had begun on a GPU: a resume without the option would be an error
    )
    path.write_text(json.dumps(saved))
    end = pogm("resume", folder, "--device", "cpu")
    assert end.code == 0
    assert "no longer deterministic, since it is resumed with device cpu (was NVIDIA H200)" in " ".join(end.err.split())
    assert read_provenance("deterministic", folder) is False


# On a GPU.

METHODS = {
    "ERM": ("--algorithm", "ERM", "--compile", "on"),
    "Fish": ("--algorithm", "Fish"),
    "POGM": ("--algorithm", "POGM", "--set", "inner_steps=2", "--compile", "on", "--precision", "bf16"),
}


def command(*words: object, fault: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``pogm <words>`` in a new process without variables of cuBLAS."""
    environment = {name: value for name, value in os.environ.items() if name != WORKSPACE} | {"POGM_FAULT": fault}
    line = [sys.executable, "-m", "pogm", *map(str, words)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=500, check=False)


def without_memory(folder: Path) -> list[dict[str, object]]:
    """Return the records of a run without time and memory."""
    return [{name: value for name, value in record.items() if name != "memory_gb"} for record in records(folder)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("method", METHODS)
def test_repeated_and_resumed_runs_are_identical(tmp_path, method):
    first, second, killed = (tmp_path / name for name in ("first", "second", "killed"))
    words = ("--dataset", "RotatedDigits", "--test-domain", 75, "--set", "network=mnist_cnn", "--steps", 41)
    words += ("--evaluate-every", 10, "--checkpoint-seconds", 0, "--device", "cuda", "--deterministic")
    words += METHODS[method]
    for folder in (first, second):
        end = command("run", *words, "--out", folder)
        assert end.returncode == 0, end.stderr
    assert command("run", *words, "--out", killed, fault="kill@step:13").returncode == -signal.SIGKILL
    end = command(
        "resume", killed, "--device", "cuda", "--checkpoint-seconds", 0
    )  # the option is read from the provenance
    assert end.returncode == 0, end.stderr
    for folder in (second, killed):
        assert without_memory(folder) == without_memory(first)
        assert weights(folder) == weights(first)
        assert read_provenance("deterministic", folder) is True


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("compile", ["off", "on"])
def test_trials_of_an_interrupted_batch_resume_with_identical_bits(tmp_path, monkeypatch, compile):
    import pogm.benchmark.runs.run_files as module

    known = trial(ERM()).training
    training = type(known)(**{**vars(known), "network": "mnist_cnn"})
    trials = [trial(ERM(), seed=seed, training=training) for seed in range(3)]
    options = RunOptions(engine=Engine("cuda", deterministic=True, compile=compile), checkpoint_seconds=0)
    assert run_batch(trials, [tmp_path / "whole" / one.id for one in trials], options) == [None] * 3
    real, seen = module.append_record, []

    def append(path, record):
        real(path, record)
        seen.append(record)
        if len(seen) == 4:  # in the second evaluation
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "append_record", append)
    with pytest.raises(StoppedError, match="SIGTERM"):
        run_batch(trials, [tmp_path / "parts" / one.id for one in trials], options)
    for one in trials:
        run(one, tmp_path / "parts" / one.id, options)
        run(one, tmp_path / "alone" / one.id, options)
        for way in ("parts", "alone"):
            assert without_memory(tmp_path / way / one.id) == without_memory(tmp_path / "whole" / one.id)
            assert model_weights(tmp_path / way / one.id) == model_weights(tmp_path / "whole" / one.id)


@pytest.mark.gpu
@needs_gpu
def test_another_cublas_workspace_while_cuda_is_in_use_is_an_error(monkeypatch, tmp_path):
    torch.zeros(1, device="cuda")
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(UsageError, match="found :0:0 and CUDA in use"):
        run(trial(ERM()), tmp_path / "run", RunOptions(engine=Engine("cuda", deterministic=True)))
