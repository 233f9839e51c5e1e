"""Estimates of time and memory by measuring."""

import json
import time
from dataclasses import replace

import pytest

from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.progress import estimate
from pogm.benchmark.progress.estimate import duration, estimates
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.cli import main, planning
from pogm.data.datasets import dataset_class
from pogm.distributed.world import Launch


def test_a_measured_estimate_counts_every_run_and_every_evaluation():
    sweep = Sweep(("ERM", "POGM"), (dataset_class("ColoredDigits")(),), 2, 1, steps=5, evaluate_every=4)
    plan = sweep.plan()
    (erm, pogm) = estimates(plan, RunOptions())
    assert (erm.runs, pogm.runs) == (6, 6)
    assert erm.seconds > 0
    assert erm.memory_gb > 0
    longer = estimates([replace(t, steps=5000) for t in plan if t.label == "ERM"], RunOptions())[0]
    assert longer.seconds > 20 * erm.seconds


def test_the_time_of_a_run_includes_its_set_up_files_and_metrics(monkeypatch):
    plan = Sweep(("ERM",), (dataset_class("ColoredDigits")(),), 1, 1, steps=1).plan()
    monkeypatch.setattr(estimate, "run_batch", lambda trials, folders, options: time.sleep(3))
    (erm,) = estimates(plan, RunOptions())
    assert erm.seconds == pytest.approx(3 * len(plan), rel=0.3)


def test_an_estimate_waits_for_no_other_process_of_torchrun():
    (trial, *_) = Sweep(("ERM",), (dataset_class("ColoredDigits")(),), 1, 1, steps=1).plan()
    assert estimates([trial], RunOptions(launch=Launch(0, 2, timeout=5)))[0].runs == 1


def test_a_configuration_that_diverges_has_an_estimate():
    (trial, *_) = Sweep(("ERM",), (dataset_class("ColoredDigits")(),), 1, 1, steps=1).plan()
    trial = replace(trial, training=replace(trial.training, lr=1e30))
    assert estimates([trial], RunOptions())[0].runs == 1


def test_the_estimate_of_a_sweep_counts_what_is_left_and_the_start_of_processes(tmp_path, capsys, monkeypatch):
    out = tmp_path / "sweep"
    words = ["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", "1", "--trials", "1"]
    words += ["--steps", "1", "--device", "cpu", "--workers", "2", "--out", str(out), "--json"]
    monkeypatch.setattr(planning, "measure_start", lambda: 1000.0)

    def estimated():
        assert main([*words, "--estimate"]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["left"], found["seconds"]

    left, seconds = estimated()
    assert (left, seconds) == (3, pytest.approx(1000, abs=100))
    sweep = Sweep(("ERM",), (dataset_class("ColoredDigits")(),), 1, 1, steps=1)
    first, *others = sweep.plan()
    save_sweep(sweep, out)
    run(first, out / first.id)
    assert estimated()[0] == 2
    for trial in others:
        run(trial, out / trial.id)
    assert estimated() == (0, 0)


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (600, "10.0 min"), (9000, "2.5 h"), (259200, "3.0 days")])
def test_durations_have_a_suitable_unit(seconds, text):
    assert duration(seconds) == text
