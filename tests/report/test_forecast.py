"""The estimate of the time left, against hand-computed values."""

from pathlib import Path

import pytest
from run_folders import record
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.results.records import Run
from pogm.report.forecast import seconds_left
from pogm.report.watch import FolderState, RunState


def run_state(state, done, *, label="ERM", steps=100, each=0.1, seconds=0.0, name=""):
    """Return a run with some of its steps done, where a step takes `each` seconds."""
    records = (record(done - 1, [0.5], [0.5], seconds_per_step=each),) if done else ()
    values = {"dataset": {"name": "RotatedDigits"}, "steps": steps, "test_domains": [0]}
    name = f"{name}{state}{done}{label}"
    run = Run(Path(name), name, values, label, ("a", "b"), records, state == "done", None, {})
    return RunState(run, state, (), seconds)


def left(*started, waiting=()):
    return seconds_left(FolderState(started, waiting))


def test_time_of_one_run_is_that_of_its_remaining_steps():
    assert left(run_state("running", 25)) == pytest.approx(75 * 0.1)


def test_two_parallel_runs_share_the_waiting_trials():
    running = [run_state("running", 50), run_state("running", 100)]
    waiting = [trial(ERM())] * 4
    assert left(*running, waiting=waiting) == pytest.approx((5 + 0 + 4 * 10) / 2)


def test_estimate_is_at_least_the_time_of_the_slowest_running_run():
    assert left(run_state("running", 1, each=10.0), run_state("running", 99)) == pytest.approx(99 * 10.0)


def test_waiting_trials_take_the_time_of_their_algorithm():
    waiting = [trial(POGM())]
    found = left(run_state("running", 100), run_state("done", 100, label="POGM", each=0.5, seconds=50), waiting=waiting)
    assert found == pytest.approx(50)


def test_overhead_of_finished_runs_is_included():
    assert left(run_state("running", 50), run_state("done", 100, seconds=30)) == pytest.approx(3 * 5)


def test_interrupted_runs_count_and_failed_runs_do_not():
    started = [run_state("running", 50), run_state("interrupted", 10), run_state("failed", 10)]
    assert left(*started) == pytest.approx(5 + 9)


def test_no_estimate_without_running_or_timed_runs():
    assert left(run_state("interrupted", 10)) is None
    assert left(run_state("running", 0)) is None
    assert left() is None
