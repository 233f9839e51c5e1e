"""The time left, on simulated clocks: within 30 % after one tenth of the work."""

import json
from itertools import pairwise

import pytest
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.runs.sweep_progress import SweepState
from pogm.benchmark.runs.time_left import RemainingRunTime, RemainingTime
from pogm.engine.trainer import Schedule


def ratios(events, total, done=0.0, settle=0.0):
    """Return estimated by true time left after every event from one tenth of the work on.

    Args:
        events: Pairs of a time and the work that is finished at it.
        total: Work in total.
        done: Work that was done before the start.
        settle: Seconds after an event without another one, for an estimate to count.
    """
    remaining = RemainingTime(total, 0.0)
    remaining.add(done, 0.01, is_new=False)
    end, worked, found = events[-1][0], 0.0, []
    for (now, work), (after, _) in pairwise([*events, (end, 0)]):
        remaining.add(work, now)
        worked += work
        is_settled = after - now >= settle  # not in the middle of a batch
        if 0.1 * (total - done) <= worked and now < end and is_settled:
            found.append(remaining.seconds(now) / (end - now))
    assert found
    return found


STARTUP = {
    "constant speed": ([(i + 1.0, 1) for i in range(100)], 100),
    "bytes at constant speed": ([(0.01 * i, 1 << 16) for i in range(1, 1000)], 999 << 16),
    "slow first step": ([(60.0 + i, 1) for i in range(100)], 100),
    "very slow first step": ([(600.0 + 0.1 * i, 1) for i in range(100)], 100),
    "batches": ([(30.0 * i, 16) for i in range(1, 11)], 160),
    "batches whose items arrive one after the other": (
        [(30.0 * i + 0.02 * j, 1) for i in range(1, 21) for j in range(16)],
        320,
    ),
    "batches after a slow start": ([(90.0 + 30.0 * i, 8) for i in range(1, 21)], 160),
    "images in bursts": ([(0.5 * i, 333) for i in range(1, 31)], 9990),
    "two workers": (sorted((d * i, 1) for d in (10.0, 14.0) for i in range(1, 51 if d == 10.0 else 36)), 85),
    "two workers after a slow start": (sorted((20 + 5.0 * i + 0.3 * w, 1) for i in range(50) for w in (0, 1)), 100),
}


@pytest.mark.parametrize("name", STARTUP)
def test_time_left_is_within_30_percent_after_one_tenth_of_the_work(name):
    found = ratios(*STARTUP[name], settle=1.0 if "one after the other" in name else 0.0)
    assert all(0.7 < ratio < 1.3 for ratio in found[: int(0.9 * len(found)) + 1]), found[:5]


@pytest.mark.parametrize("done", [1, 40, 80])
def test_work_that_was_done_before_does_not_count_as_fast(done):
    events = [(20.0 * i, 1) for i in range(1, 91 - done)]
    assert ratios(events, 90, done) == pytest.approx([1] * len(ratios(events, 90, done)), rel=0.01)


def test_the_estimate_decreases_while_nothing_finishes():
    remaining = RemainingTime(10, 0.0)
    assert remaining.seconds(5.0) is None
    remaining.add(1, 10.0)
    assert [remaining.seconds(now) for now in (10.0, 15.0, 200.0)] == [90.0, 85.0, 0.0]


def test_an_unknown_total_has_no_estimate():
    remaining = RemainingTime(None, 0.0)
    remaining.add(5, 1.0)
    assert remaining.seconds(1.0) is None


def simulate_run(schedule, minibatch, evaluation, first=0.0, rounds=True, before=0):
    """Yield the number of minibatches, the estimate and the true time left after every minibatch and evaluation.

    Args:
        schedule: Length and evaluations.
        minibatch: Seconds of a minibatch.
        evaluation: Seconds of an evaluation.
        first: Additional seconds of the first minibatch, for compilation.
        rounds: Count rounds; otherwise evaluations only.
        before: Number of minibatches that an earlier process has trained.
    """
    points, now, step = [point for point in schedule.points() if point >= before], 100.0, before
    end = now + first + (schedule.steps - before) * minibatch + len(points) * evaluation
    remaining = RemainingRunTime(schedule)
    remaining.start(before, now)
    for point in points:
        start, trained = now, point + 1 - step
        while step <= point:
            now += minibatch + (first if step == before else 0)
            step += 1
            if rounds:
                remaining.add_round(step, now)
                yield step, remaining.seconds(now), end - now
        per_step = (now - start) / trained
        now += evaluation
        remaining.add_evaluation(step, per_step, now)
        yield step, remaining.seconds(now), end - now


RUNS = {  # seconds of a minibatch, of an evaluation, and of start-up
    "constant speed": (0.1, 0.1, 0),
    "compilation": (0.1, 1, 60),
    "evaluations cost more than steps": (0.1, 100, 0),
    "both": (0.1, 100, 60),
}


@pytest.mark.parametrize("before", [0, 350])
@pytest.mark.parametrize("name", RUNS)
def test_time_left_of_a_run_is_within_30_percent_after_one_tenth(name, before):
    minibatch, evaluation, first = RUNS[name]
    tenth = before + 0.1 * (1001 - before)
    for step, estimate, left in simulate_run(Schedule(1001, 100), minibatch, evaluation, first, before=before):
        if step >= tenth + (100 if before else 0) and left > 1e-6:  # a resumed run is evaluated once before
            assert estimate == pytest.approx(left, rel=0.3)


def test_time_left_of_a_run_is_known_from_evaluations_alone():
    found = list(simulate_run(Schedule(1001, 300), 0.1, 20, 60, rounds=False))
    assert found[0][1] is None
    assert [estimate for _, estimate, _ in found[1:]] == pytest.approx([left for *_, left in found[1:]], abs=1e-6)


def test_compilation_after_a_resume_does_not_count_as_slow():
    remaining = RemainingRunTime(Schedule(1000, 1000))
    remaining.start(900, 5.0)
    remaining.add_round(901, 65.0)
    assert remaining.seconds(65.0) is None
    remaining.add_round(911, 75.0)
    assert remaining.seconds(75.0) == pytest.approx(89)
    assert remaining.seconds(80.0) == pytest.approx(84)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch", [1, 4])
def test_time_left_of_a_sweep_is_within_30_percent_after_one_tenth(tmp_path, workers, batch):
    """Runs of two algorithms, one of them slower as costs.json says, with start-up and evaluations every 10 steps."""
    trials = [trial(algorithm, seed=seed, steps=100) for algorithm in (ERM(), POGM()) for seed in range(8)]
    state = SweepState(trials, tmp_path, 0.0)
    jobs = [trials[i : i + batch] for i in range(0, len(trials), batch)]
    clocks, events = [30.0] * workers, []
    for job in jobs:
        worker = clocks.index(min(clocks))
        for step in (0, *range(10, 100, 10), 99):
            steps = 1 if step == 0 else 10 if step < 99 else 9
            clocks[worker] += steps * state.costs[job[0].id] + 2.0
            events.append((clocks[worker], job, step))
    end, total = max(clocks), state.remaining.total
    found = []
    for now, job, step in sorted(events, key=lambda event: event[0]):
        for one in job:
            (tmp_path / one.id).mkdir(exist_ok=True)
            (tmp_path / one.id / "records.jsonl").write_text(json.dumps({"step": step}) + "\n")
        state.update(now)
        if state.remaining.done >= 0.1 * total and now < 0.9 * end:
            found.append(state.remaining.seconds(now) / (end - now))
    assert found
    assert all(0.7 < ratio < 1.3 for ratio in found), found


def test_minibatches_of_failed_runs_are_not_left(tmp_path):
    trials = [trial(ERM(), seed=seed, steps=100) for seed in range(2)]
    state = SweepState(trials, tmp_path, 0.0)
    for one, name, text in (
        (trials[0], "records.jsonl", '{"step": 49}\n'),
        (trials[1], "failed.json", '{"error": ""}'),
    ):
        (tmp_path / one.id).mkdir()
        (tmp_path / one.id / name).write_text(text)
    state.update(10.0)
    assert state.remaining.seconds(10.0) == pytest.approx(10.0)
    assert [dict(counts) for counts, _ in state.rows().values()] == [{"waiting": 1, "failed": 1}]
