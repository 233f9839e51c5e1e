"""How long it will still take, against sums done by hand."""

from pathlib import Path

import pytest
from run_folders import record
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.results.records import Run
from pogm.report.forecast import seconds_left
from pogm.report.watch import Glance, Watched


def watched(state, done, *, label="ERM", steps=100, each=0.1, seconds=0.0, name=""):
    """A run of so many steps, of which some are done, each of which took so long."""
    records = (record(done - 1, [0.5], [0.5], seconds_per_step=each),) if done else ()
    values = {"dataset": {"name": "RotatedDigits"}, "steps": steps, "test_domains": [0]}
    name = f"{name}{state}{done}{label}"
    run = Run(Path(name), name, values, label, ("a", "b"), records, state == "done", None, {})
    return Watched(run, state, (), seconds)


def left(*begun, waiting=()):
    return seconds_left(Glance(begun, waiting))


def test_one_run_takes_the_steps_that_are_left():
    assert left(watched("running", 25)) == pytest.approx(75 * 0.1)


def test_two_at_a_time_share_what_is_waiting():
    running = [watched("running", 50), watched("running", 100)]
    waiting = [trial(ERM())] * 4
    assert left(*running, waiting=waiting) == pytest.approx((5 + 0 + 4 * 10) / 2)


def test_it_takes_at_least_as_long_as_the_slowest_that_is_running():
    assert left(watched("running", 1, each=10.0), watched("running", 99)) == pytest.approx(99 * 10.0)


def test_those_that_wait_take_what_others_of_their_algorithm_take():
    waiting = [trial(POGM())]
    found = left(watched("running", 100), watched("done", 100, label="POGM", each=0.5, seconds=50), waiting=waiting)
    assert found == pytest.approx(50)


def test_what_finished_runs_took_beyond_their_steps_counts():
    assert left(watched("running", 50), watched("done", 100, seconds=30)) == pytest.approx(3 * 5)


def test_interrupted_runs_go_on_and_failed_ones_do_not():
    begun = [watched("running", 50), watched("interrupted", 10), watched("failed", 10)]
    assert left(*begun) == pytest.approx(5 + 9)


def test_nothing_is_said_where_nothing_runs_or_nothing_is_known():
    assert left(watched("interrupted", 10)) is None
    assert left(watched("running", 0)) is None
    assert left() is None
