"""The time left, on simulated clocks: within 30 % after one tenth of the work."""

import os
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from run_folders import record
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.costs.run_costs import RunCosts, RunTimes
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.progress.sweep_progress import SweepState
from pogm.benchmark.progress.time_left import RemainingRunTime, RemainingSweepTime, RemainingTime, RemainingTransferTime
from pogm.benchmark.results.record_file import record_line
from pogm.benchmark.runs.directory import make_folder, write_trial
from pogm.data.datasets import dataset_class
from pogm.data.images.cache import load_cached
from pogm.data.images.class_folders import read_tree
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


MIB = 1 << 20


def transfer(start, seconds, first=0, last=100):
    """Return the times and the bytes received, after every MiB, at constant speed."""
    return [(start + seconds * (i - first) / (last - first), i * MIB) for i in range(first + 1, last + 1)]


TRANSFERS = {  # of 100 MiB
    "constant speed": transfer(1, 50),
    "continued": transfer(1, 50, first=40),
    "continued near the end": transfer(1, 5, first=90),
    "slow at first": transfer(1, 4, last=4) + transfer(5, 48, first=4),
    "connection lost for 15 seconds": transfer(1, 30, last=30) + transfer(46, 70, first=30),
    "begun again": transfer(1, 10, last=20) + transfer(15, 50),
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_time_left_of_a_download_is_within_30_percent_after_one_tenth(name):
    """An interruption cannot be foreseen, so the estimates after it count."""
    events, found = TRANSFERS[name], []
    remaining, end, before = RemainingTransferTime(0.0), events[-1][0], events[0][1] - MIB
    settled = before + 0.1 * (100 * MIB - before)
    last_break = max([0.0, *(now for (was, _), (now, _) in pairwise(events) if now - was > 3)])
    for (was, _), (now, received) in pairwise([(-9.0, 0), *events]):
        if now - was > 3:  # an attempt begins
            remaining.receive(received - MIB, 100 * MIB, now)
        remaining.receive(received, 100 * MIB, now)
        if received > settled and last_break < now < end:
            found.append(remaining.seconds(now) / (end - now))
    assert len(found) > 5
    assert all(0.7 < ratio < 1.3 for ratio in found), (min(found), max(found))


CACHES = {"images of the first domains are small": (64, 128, 512, 768), "and large": (768, 512, 128, 64)}


@pytest.mark.parametrize("name", CACHES)
def test_time_left_of_an_image_cache_is_within_30_percent_after_one_tenth(name, tmp_path):
    """Two passes over the files of domains with images of different sizes: the index, then the decoded images.

    The index takes 0.13 ms for a file and 0.8 ns for a byte; an image takes 0.93 ms and 9 ns for a pixel, as measured.
    """
    sizes, draw = CACHES[name], np.random.default_rng(0)
    for number, size in enumerate(sizes):
        folder = tmp_path / "data" / f"domain{number}" / "class"
        folder.mkdir(parents=True)
        for image in range(20):
            noise = Image.fromarray(draw.integers(0, 256, (size // 8, size // 8, 3), np.uint8))
            noise.resize((size, size)).save(folder / f"{image}.jpg")
    tree = read_tree(tmp_path / "data")
    files = [(tmp_path / "data" / file.path).stat().st_size for file in tree.files]
    pixels = [size**2 for size in sizes for _ in range(20)]
    seconds = {"files": [1.3e-4 + 8e-10 * n for n in files], "images": [9.3e-4 + 9e-9 * n for n in pixels]}
    ratios = {}

    def progress(items, total, what="images", work=()):
        now, end, remaining = 0.0, sum(seconds[what]), RemainingTime(sum(work) or total, 0.0)
        for number, item in enumerate(items):
            now += seconds[what][number]
            remaining.add(work[number] if work else 1, now)
            if 0.1 * end < now < 0.9 * end:
                ratios.setdefault(what, []).append(remaining.seconds(now) / (end - now))
            yield item

    load_cached(tree, cache=tmp_path / "cache", progress=progress)
    assert list(ratios) == ["files", "images"]
    for what, found in ratios.items():
        assert all(0.7 < ratio < 1.3 for ratio in found), (what, min(found), max(found))


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


@dataclass(frozen=True)
class Machine:
    """A simulated machine that runs a sweep; all times are in seconds."""

    pogm: float = 1.0  # time of a step of POGM, relative to ERM; costs.json has 1.01
    coloured: float = 1.0  # time of a step on ColoredMNIST, relative to RotatedMNIST
    overhead: float = 100  # images that take as long as a step without images
    start_up: float = 10  # of the processes
    set_up: float = 1  # before the first step of a job
    compilation: float = 0  # in the first step of a job
    evaluation: float = 2
    workers: int = 2
    batch: int = 1  # trials that train as one job
    done_before: float = 0  # part of the jobs
    per_image: float = 1e-4

    def step_seconds(self, job):
        one, scale = job[0], self.per_image * (1 + 0.1 * (len(job) - 1))
        scale *= self.pogm if one.label == "POGM" else 1
        scale *= self.coloured if one.dataset.title == "ColoredMNIST" else 1
        return scale * (self.overhead + one.training.batch_size * len(one.train_domains))

    def jobs(self, trials):
        alike = {}
        for one in trials:
            kind = (one.hparams_seed, one.dataset.title, one.label) if self.batch > 1 else one.id
            alike.setdefault(kind, []).append(one)
        return [found[i : i + self.batch] for found in alike.values() for i in range(0, len(found), self.batch)]

    def run(self, job, begin):
        """Return the time, the finished part and the measured times after every evaluation of a job."""
        step, now, events = self.step_seconds(job), begin + self.set_up, []
        for number, point in enumerate(job[0].schedule.points()):
            now = begin + self.set_up + self.compilation + (point + 1) * step + (number + 1) * self.evaluation
            times = (
                RunTimes(step, step + self.compilation, self.evaluation, batch=float(int(job[0].id, 16)))
                if number
                else None
            )
            events.append((now, job, (point + 1) / job[0].steps, times))
        return events


MACHINES = {
    "costs.json is right": Machine(),
    "one worker": Machine(workers=1),
    "POGM takes four times as long as in costs.json": Machine(pogm=4),
    "one dataset takes five times as long": Machine(coloured=5),
    "time is proportional to the batch size": Machine(overhead=0),
    "time hardly depends on the batch size": Machine(overhead=500),
    "evaluations take most of the time": Machine(evaluation=40, pogm=4),
    "every run compiles": Machine(compilation=60, pogm=4),
    "batches of trials": Machine(workers=1, batch=3, pogm=2, coloured=3),
    "batches that compile": Machine(workers=1, batch=6, pogm=2, compilation=30),
    "resumed": Machine(done_before=0.4, pogm=4, coloured=3),
    "resumed near the end": Machine(done_before=0.8, pogm=4, workers=1),
    "resumed batches": Machine(workers=1, batch=3, done_before=0.5, pogm=2, coloured=3, compilation=30),
}


@pytest.mark.parametrize("name", MACHINES)
def test_time_left_of_a_sweep_is_within_30_percent_after_one_tenth(name):
    """Two algorithms, two datasets and batch sizes of a random search, in the order of a sweep."""
    machine, data = MACHINES[name], tuple(dataset_class(name)() for name in ("RotatedMNIST", "ColoredMNIST"))
    trials = Sweep(("ERM", "POGM"), data, configurations=6, trials=1, steps=601, evaluate_every=200).plan()
    assert len({one.training.batch_size for one in trials}) > 5
    jobs, costs, parts = machine.jobs(trials), RunCosts(trials), {one.id: 0.0 for one in trials}

    def show(event):
        _, job, part, times = event
        for one in job:
            parts[one.id] = part
            costs.times |= {} if times is None else {one.id: times}

    before = int(machine.done_before * len(jobs))
    for job in jobs[:before]:
        show(machine.run(job, 0.0)[-1])
    remaining, events, clocks = RemainingSweepTime(parts, 0.0), [], [machine.start_up] * machine.workers
    for job in jobs[before:]:
        worker = clocks.index(min(clocks))
        events += machine.run(job, clocks[worker])
        clocks[worker] = events[-1][0]
    end, found = max(clocks), []
    for number, event in enumerate(sorted(events, key=lambda event: event[0])):
        show(event)
        if number < 5 or number % 8 == 0:
            remaining.update(parts, costs.predict(), bool(costs.times), now := event[0])
            if 0.1 * end < now < 0.9 * end:
                found.append(remaining.seconds(now) / (end - now))
    assert len(found) > 5
    assert all(0.7 < ratio < 1.3 for ratio in found), (min(found), max(found))


def test_the_start_of_processes_does_not_count_as_slow_runs():
    """Ten runs of 2 s in two processes, which take 28 s to start."""
    ids, costs = "abcdefghij", dict.fromkeys("abcdefghij", 2.0)
    remaining = RemainingSweepTime(dict.fromkeys(ids, 0.0), 0.0)
    remaining.update(dict.fromkeys(ids, 0.0) | {"a": 1.0}, costs, True, 30.0)
    assert remaining.seconds(30.0) == 18.0
    remaining.update(dict.fromkeys(ids, 0.0) | dict.fromkeys("abc", 1.0), costs, True, 32.0)
    assert remaining.seconds(32.0) == 7.0


def test_the_first_thousandth_of_the_work_gives_no_estimate():
    """Its time is that of the start: 10 s for a step of 5,000, and then 0.01 s for each."""
    remaining = RemainingSweepTime({"a": 0.0}, 0.0)
    remaining.update({"a": 1 / 5000}, {"a": 1.0}, False, 10.0)
    assert remaining.seconds(10.0) is None
    remaining.update({"a": 501 / 5000}, {"a": 1.0}, False, 15.0)
    assert remaining.seconds(15.0) == pytest.approx(44.99)


def write_run(folder, one, begin, until, per_step, evaluation):
    """Write the folder of a run with records up to a step, and the times that its files would have."""
    run, points = folder / one.id, [point for point in one.schedule.points() if point <= until]
    make_folder(run)
    write_trial(run, one, {})
    scores = record(0, [0.5] * 6, [0.5] * 6)
    measured = per_step + 1e-9 * one.seed  # of different runs, so different digits
    lines = [scores | {"step": point, "seconds_per_step": measured} for point in points]
    (run / "records.jsonl").write_bytes(b"".join(map(record_line, lines)))
    end = begin + (points[-1] + 1) * per_step + len(points) * evaluation
    os.utime(run / "trial.json", (begin, begin))
    os.utime(run / "records.jsonl", (end, end))
    if points[-1] == one.steps - 1:
        (run / "done").write_text("done")
        os.utime(run / "done", (end, end))


def test_costs_are_read_from_folders_and_an_interruption_does_not_count(tmp_path):
    """ERM takes 1 s per step and evaluations 5 s; POGM takes 3 s per step. A run of POGM was interrupted."""
    trials = [trial(kind, seed=seed, steps=41, evaluate_every=20) for kind in (ERM(), POGM()) for seed in range(3)]
    erm, other_erm, waiting_erm, pogm, stopped, waiting_pogm = trials
    for one, until, per_step in ((erm, 40, 1.0), (other_erm, 40, 1.0), (pogm, 40, 3.0), (stopped, 20, 3.0)):
        write_run(tmp_path, one, 100.0, until, per_step, evaluation=5.0)
    state = SweepState(trials, tmp_path, 5000.0)
    costs = state.costs.predict()
    assert costs[waiting_erm.id] == pytest.approx(41 + 3 * 5, abs=3)
    assert costs[waiting_pogm.id] == pytest.approx(41 * 3 + 3 * 5, abs=3)  # the first step is the median of all runs
    write_run(tmp_path, stopped, 100.0, 40, 3.0, evaluation=1000.0)  # the time of its files contains the pause
    state.update(5065.0)
    assert state.costs.predict()[waiting_erm.id] == pytest.approx(41 + 3 * 5, abs=3)
    assert state.steps == 4 * 41
    left = (41 + 3 * 5) + (41 * 3 + 3 * 5)
    assert state.remaining.seconds(5065.0) == pytest.approx(left, rel=0.1)


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
