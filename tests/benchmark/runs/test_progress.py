"""How far a job is, and how long it will take."""

import itertools

import pytest
from support import trial

from pogm import ERM
from pogm.benchmark.runs import progress
from pogm.benchmark.runs.progress import EvaluationLines, tracked


@pytest.fixture
def _clock(monkeypatch):
    """A clock that goes on by ten seconds at every look."""
    times = itertools.count(0, 10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))


@pytest.mark.usefixtures("_clock")
def test_items_pass_through_and_lines_tell_the_time_that_is_left(capsys):
    assert list(tracked(iter("abc"), 3, "runs")) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [
        "runs: 1/3, 10 s, 20 s left",
        "runs: 2/3, 20 s, 10 s left",
        "runs: 3/3, 30 s, 0 s left",
    ]


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(tracked(range(2), 2, "runs")) == [0, 1]
    assert "2/2" in capsys.readouterr().err


@pytest.mark.usefixtures("_clock")
def test_an_evaluation_is_a_line_with_both_accuracies_and_the_time_that_is_left(capsys):
    show = EvaluationLines(trial(ERM(), test_domains=(0,), steps=101))
    accuracy = {"in": [0.25, 0, 0, 0, 0, 0], "out": [0, 0.1, 0.2, 0.3, 0.4, 0.5]}
    for step in (40, 60, 100):
        show({"step": step, "accuracy": accuracy})
    assert capsys.readouterr().out.splitlines() == [
        "step 40/100  validation 30.0%  held out 0 25.0%",
        "step 60/100  validation 30.0%  held out 0 25.0%  20 s left",
        "step 100/100  validation 30.0%  held out 0 25.0%  0 s left",
    ]
    show({"step": 40, "accuracy": accuracy, "swad": True})
    assert capsys.readouterr().out == "step 40/100  validation 30.0%  held out 0 25.0%  with averaged weights\n"
