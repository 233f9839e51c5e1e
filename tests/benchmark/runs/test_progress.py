"""Progress and the time left, on synthetic schedules."""

import itertools
import random

import pytest
from support import trial

from pogm import ERM
from pogm.benchmark.runs import progress
from pogm.benchmark.runs.executors import Outcome
from pogm.benchmark.runs.progress import (
    EvaluationLines,
    RemainingRunTime,
    RemainingTime,
    RunProgress,
    show_progress,
    track_runs,
)
from pogm.benchmark.runs.runner import run
from pogm.engine.trainer import Schedule


def estimate_ratios(schedule, total, at_once=1, done=0):
    """Return the ratio of estimated and true time left after every group of items that finish together.

    Args:
        schedule: Pairs of a time and the number of items that finish at it.
        total: Number of items.
        at_once: Number of items that run in parallel.
        done: Number of items that were done before the start.
    """
    remaining = RemainingTime(total, 0.0, at_once)
    for _ in range(done):
        remaining.add(1, 0.01, is_new=False)
    end = schedule[-1][0]
    ratios = []
    for now, count in schedule[:-1]:
        for _ in range(count):
            remaining.add(1, now)
        ratios.append(remaining.seconds(now) / (end - now))
    return ratios


def test_batches_that_finish_together_give_the_true_time_left():
    """A GPU: 90 runs in batches of 16, half a minute each. Before, the estimate was wrong by a factor of ten."""
    batches = [(30.0 * i, 16) for i in range(1, 6)] + [(30.0 * 90 / 16, 10)]
    assert estimate_ratios(batches, 90) == pytest.approx([1] * 5, rel=0.01)


def test_images_that_arrive_in_bursts_give_the_true_time_left():
    bursts = [(0.5 * i, 333) for i in range(1, 31)]
    assert estimate_ratios(bursts, 9990) == pytest.approx([1] * 29, rel=0.01)


@pytest.mark.parametrize("done", [1, 40, 80])
def test_runs_that_were_done_before_do_not_count_as_fast(done):
    schedule = [(20.0 * i, 1) for i in range(1, 91 - done)]
    assert estimate_ratios(schedule, 90, done=done) == pytest.approx([1] * (89 - done), rel=0.01)


def test_parallel_runs_that_finish_one_after_the_other_are_not_taken_for_slow_ones():
    """Sixteen processes: their first runs finish at about the same time, but not within a moment."""
    waves = [(60.0 * wave + i, 1) for wave in range(1, 5) for i in range(16)]
    ratios = estimate_ratios(waves, 64, at_once=16)
    assert all(0.6 < ratio < 1.6 for ratio in ratios[:44])


def test_parallel_runs_that_finish_at_random_give_about_the_true_time_left():
    draw = random.Random(0)
    ends = [draw.uniform(0, 60) for _ in range(16)]  # the first runs of a resumed sweep
    schedule = []
    for _ in range(200):
        soonest = min(range(16), key=ends.__getitem__)
        schedule.append((ends[soonest], 1))
        ends[soonest] += draw.uniform(40, 80)
    ratios = estimate_ratios(schedule, 200, at_once=16)
    assert all(0.6 < ratio < 1.4 for ratio in ratios[16:176])


def test_the_estimate_decreases_while_no_item_finishes():
    remaining = RemainingTime(10, 0.0)
    assert remaining.seconds(5.0) is None
    remaining.add(1, 10.0)
    assert [remaining.seconds(now) for now in (10.0, 15.0, 200.0)] == [90.0, 85.0, 0.0]


@pytest.fixture
def clock(monkeypatch):
    """A clock, in seconds, that a test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
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


def test_long_trials_count_more_than_short_ones(clock, estimates, capsys):
    def outcomes():
        for one in trials:
            clock[0] += 10.0
            yield Outcome(one)

    trials = [trial(ERM(), steps=100), trial(ERM(), steps=900)]
    list(track_runs(outcomes(), trials))
    assert estimates == [90.0, 0.0]
    assert capsys.readouterr().err == "runs: 2/2, 20 s, 0 s left\n"


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
    lines = progress._Lines(4, "runs", remaining)
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


def test_an_evaluation_line_has_both_accuracies_and_the_time_left(capsys, monkeypatch):
    times = itertools.count(0, 10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
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


def test_minibatches_of_long_runs_are_counted_from_their_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    trials = [trial(ERM(), seed=seed, steps=21) for seed in range(2)]
    folder = tmp_path / trials[0].id
    folder.mkdir()
    (folder / "records.jsonl").write_text('{"step": 0}\n{"step": 10}\n')
    assert progress.count_steps(trials, tmp_path) == 11

    def outcomes():
        (folder / "records.jsonl").write_text('{"step": 20}\n{"step": 2')  # a line that is being written
        yield Outcome(trials[0])
        (folder / "records.jsonl").write_text('{"step": 20}\n')
        (tmp_path / trials[1].id).mkdir()
        (tmp_path / trials[1].id / "records.jsonl").write_text('{"step": 20}\n')
        yield Outcome(trials[1])

    assert len(list(progress.track_steps(outcomes(), trials, tmp_path))) == 2
    assert "minibatches: 42/42" in capsys.readouterr().err


def simulate_run(schedule, minibatch, evaluation, first=0.0, rounds=True):
    """Yield the estimate and the true time left after every minibatch and evaluation of a run.

    Args:
        schedule: Length and evaluations.
        minibatch: Seconds of a minibatch.
        evaluation: Seconds of an evaluation.
        first: Additional seconds of the first minibatch, for compilation.
        rounds: Count rounds; otherwise evaluations only.
    """
    points, now, step = schedule.points(), 100.0, 0
    end = now + first + schedule.steps * minibatch + len(points) * evaluation
    remaining = RemainingRunTime(schedule)
    remaining.start(0, now)
    for point in points:
        start, trained = now, point + 1 - step
        while step <= point:
            now += minibatch + (first if step == 0 else 0)
            step += 1
            if rounds:
                remaining.add_round(step, now)
                yield remaining.seconds(now), end - now
        per_step = (now - start) / trained
        now += evaluation
        remaining.add_evaluation(step, per_step, now)
        yield remaining.seconds(now), end - now


@pytest.mark.parametrize(("minibatch", "evaluation", "first"), [(0.1, 20, 0), (0.1, 20, 60), (2, 0.5, 3)])
def test_time_left_of_a_run_is_known_after_its_second_minibatch(minibatch, evaluation, first):
    found = list(simulate_run(Schedule(1001, 300), minibatch, evaluation, first))
    assert found[1][0] is None  # after the first evaluation: the only minibatch contains the compilation
    for estimate, left in found[2:]:
        assert estimate == pytest.approx(left, rel=1e-6, abs=1e-6)


def test_time_left_of_a_run_is_known_from_evaluations_alone():
    found = list(simulate_run(Schedule(1001, 300), 0.1, 20, 60, rounds=False))
    assert found[0][0] is None
    assert [estimate for estimate, _ in found[1:]] == pytest.approx([left for _, left in found[1:]], abs=1e-6)


def test_time_left_of_a_resumed_run_does_not_count_earlier_minibatches_as_fast():
    remaining = RemainingRunTime(Schedule(1000, 1000))
    remaining.start(900, 5.0)
    assert remaining.seconds(5.0) is None
    remaining.add_round(910, 15.0)
    assert remaining.seconds(15.0) == pytest.approx(90)
    assert remaining.seconds(20.0) == pytest.approx(85)


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
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    def items(seconds):
        nonlocal now
        for number in range(3):
            now += seconds
            yield number

    assert list(progress.show_image_progress(items(0.1), 3, "folders")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
    assert list(progress.show_image_progress(items(1.5), 3, "folders")) == [0, 1, 2]
    assert "folders: 3/3" in capfd.readouterr().err
