"""Estimates of time and memory by measuring."""

from dataclasses import replace

import pytest

from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.progress.estimate import duration, estimates
from pogm.benchmark.runs.runner import RunOptions
from pogm.data.datasets import dataset_class


def test_a_measured_estimate_counts_every_run_and_every_evaluation():
    sweep = Sweep(("ERM", "POGM"), (dataset_class("ColoredDigits")(),), 2, 1, steps=5, evaluate_every=4)
    plan = sweep.plan()
    (erm, pogm) = estimates(plan, RunOptions())
    assert (erm.runs, pogm.runs) == (6, 6)
    assert erm.seconds > 0
    assert erm.memory_gb > 0
    longer = estimates([replace(t, steps=5000) for t in plan if t.label == "ERM"], RunOptions())[0]
    assert longer.seconds > 20 * erm.seconds


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (600, "10.0 min"), (9000, "2.5 h"), (259200, "3.0 days")])
def test_durations_have_a_suitable_unit(seconds, text):
    assert duration(seconds) == text
