"""Progress and the time left, on synthetic schedules."""

import pytest
from support import trial

from pogm import ERM
from pogm.benchmark.executors.outcomes import Outcome
from pogm.benchmark.progress import display, run_progress
from pogm.benchmark.progress.run_progress import (
    EvaluationLines,
    RemainingTime,
    RunProgress,
    show_progress,
)
from pogm.benchmark.runs.runner import run


@pytest.fixture
def clock(monkeypatch):
    """A clock, in seconds, that a test sets."""
    now = [0.0]
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def estimates(monkeypatch):
    """Estimates after every item."""
    found, add = [], RemainingTime.add

    def add_and_note(self, work, now, is_new=True):
        add(self, work, now, is_new)
        found.append(self.seconds(now))

    monkeypatch.setattr(RemainingTime, "add", add_and_note)
    return found


def test_outcomes_of_earlier_runs_do_not_count_for_the_time_left(clock, estimates):
    def outcomes():
        for seed in range(40):
            yield Outcome(trial(ERM(), seed=seed), ran=False)
        for seed in range(40, 50):
            clock[0] += 30.0
            yield Outcome(trial(ERM(), seed=seed))

    assert len(list(show_progress(outcomes(), 50, "runs"))) == 50
    assert estimates == [None] * 40 + [pytest.approx(30.0 * left) for left in reversed(range(10))]


def test_lines_show_the_count_after_a_batch_has_settled(clock, capsys):
    remaining = RemainingTime(4, 0.0)
    lines = display.Lines(4, "runs", remaining)
    for seconds in (10.0, 10.1):  # a batch of two
        clock[0] = seconds
        remaining.add(1, seconds)
        lines.advance()
        lines.print_if_due(seconds)
    assert capsys.readouterr().err == ""
    lines.print_if_due(10.7)
    lines.print_if_due(16.0)  # nothing new
    assert capsys.readouterr().err == "runs: 2/4, 11 s, 10 s left\n"


def test_items_pass_through_and_the_last_line_has_the_total(capsys):
    assert list(show_progress(iter("abc"), 3, "runs")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "runs: 3/3, 0 s, 0 s left\n"
    assert list(show_progress(iter(()), 0, "runs")) == []
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(show_progress(range(2), 2, "runs")) == [0, 1]
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "0:00:00" in shown


def test_an_evaluation_line_has_both_accuracies_and_the_time_left(capsys, clock):
    remaining = RemainingTime(101, 0.0)
    show = EvaluationLines(trial(ERM(), test_domains=(0,), steps=101), remaining)
    accuracy = {"in": [0.25, 0, 0, 0, 0, 0], "out": [0, 0.1, 0.2, 0.3, 0.4, 0.5]}
    show({"step": 40, "accuracy": accuracy})
    for step, work in ((60, 61), (100, 40)):
        clock[0] += work / 2
        remaining.add(work, clock[0])
        show({"step": step, "accuracy": accuracy})
    assert capsys.readouterr().out.splitlines() == [
        "step 40/100  validation 30.0%  held out 0 25.0%",
        "step 60/100  validation 30.0%  held out 0 25.0%  20 s left",
        "step 100/100  validation 30.0%  held out 0 25.0%  0 s left",
    ]
    show({"step": 40, "accuracy": accuracy, "swad": True})
    assert capsys.readouterr().out == "step 40/100  validation 30.0%  held out 0 25.0%  with averaged weights\n"


def test_progress_of_a_run_on_a_terminal_is_a_bar_and_leaves_standard_output_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    one = trial(ERM(), steps=21, evaluate_every=10)
    with RunProgress(one) as shown:
        run(one, tmp_path / "run", on_evaluation=shown.on_record, on_round=shown.on_round)
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()] == ["0/20", "10/20", "20/20"]
    assert "21/21" in said.err
    assert "0:00:00" in said.err


def test_progress_of_a_run_elsewhere_is_lines_that_become_rare(clock, capsys):
    shown = RunProgress(trial(ERM(), steps=100_001, evaluate_every=100_000))
    shown.on_round(0)
    for count in range(1, 1000):
        clock[0] = float(count)
        shown.on_round(count)
        shown.display.print_if_due(clock[0])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "minibatches: 5/100001, 5 s, 99996 s left"
    assert 20 < len(lines) < 70


def test_nothing_is_shown_before_the_delay(capfd, monkeypatch):
    now = 0.0
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now)

    def items(seconds):
        nonlocal now
        for number in range(3):
            now += seconds
            yield number

    assert list(run_progress.show_image_progress(items(0.1), 3, "folders")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
    assert list(run_progress.show_image_progress(items(1.5), 3, "folders")) == [0, 1, 2]
    assert "folders: 3/3" in capfd.readouterr().err
