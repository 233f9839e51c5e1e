"""Batches of trials: each trial writes what it would write alone."""

import dataclasses
import json
import shutil
import signal
from itertools import chain

import pytest
from support import needs_gpu, trial

from pogm import ERM, POGM, Fish, Mixup
from pogm._system.errors import DivergedError, InUseError, StoppedError, UsageError
from pogm._system.files import lock_folder
from pogm.benchmark.executors.jobs import group_alike, make_jobs
from pogm.benchmark.executors.local import run_all
from pogm.benchmark.executors.worker import run_job
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs import run_files
from pogm.benchmark.runs.batch import UnevenBatchError
from pogm.benchmark.runs.directory import write_trial
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.data.datasets.folder import Folder
from pogm.diagnostics import Probe
from pogm.engine.session import Engine, Session
from pogm.engine.setup import check_alike

PROBE = Probe(every=4, lag=4, target=True)
FOUR = [trial(POGM(), precision="fp64", seed=s, test_domains=(d,), probe=PROBE) for s in (0, 1) for d in (0, 5)]


def folders(root, trials):
    return [root / one.id for one in trials]


def numbers(folder, one):
    """Return the numbers of the records of a finished run that do not depend on the clock."""
    (found,) = read_runs(folder / one.id)
    assert found.status == "done"
    return [
        [
            *(r["step"], *r["accuracy"]["in"], *r["accuracy"]["out"], r["metrics"]["loss"]),
            *(*r["rounds"]["round"], *chain(*r["rounds"]["cosine"]), *r["rounds"]["magnitude"]),
        ]
        for r in found.records
    ]


def approximate_numbers(folder, one):
    """Return the same numbers, for a comparison up to rounding."""
    return [pytest.approx(row, rel=1e-6) for row in numbers(folder, one)]


def overflowing(training):
    """Return a copy with a learning rate above the limit of the field, so that float64 overflows."""
    copy = dataclasses.replace(training)
    object.__setattr__(copy, "lr", 1e300)
    return copy


def test_trials_that_can_share_a_batch_are_grouped():
    other = [trial(Fish()), trial(POGM(inner_steps=2)), dataclasses.replace(FOUR[0], steps=7)]
    groups = group_alike([FOUR[0], *other, *FOUR[1:]], most=3)
    assert groups == [FOUR[:3], [other[0]], [other[1]], [other[2]], FOUR[3:]]


def test_trials_with_different_minibatch_sizes_are_grouped_unless_the_engine_forbids_it(tmp_path):
    """A random search draws a minibatch size for every configuration; a session of many trials keeps a GPU busy."""
    trials = [
        dataclasses.replace(one, training=dataclasses.replace(one.training, batch_size=size))
        for size in (8, 11) for one in FOUR[:2]
    ]  # fmt: skip
    assert make_jobs(trials, tmp_path, RunOptions(), on_gpu=True) == [trials]
    for options in ({"deterministic": True}, {"trials": "vmap"}):
        apart = make_jobs(trials, tmp_path, RunOptions(engine=Engine(**options)), on_gpu=True)
        assert apart == [trials[:2], trials[2:]]
    assert run_batch(trials, folders(tmp_path / "batch", trials), RunOptions()) == [None] * 4
    for one in (trials[0], trials[3]):
        run(one, tmp_path / "alone" / one.id)
        assert numbers(tmp_path / "batch", one) == approximate_numbers(tmp_path / "alone", one)


def test_trials_with_other_numbers_of_a_modifier_do_not_share_a_batch():
    once, twice = trial(ERM(), modifiers=(Mixup(),)), trial(ERM(), modifiers=(Mixup(0.3), Mixup()))
    assert group_alike([once, twice], most=3) == [[once], [twice]]
    with pytest.raises(UsageError, match=r"different values of Mixup\[1\]\."):
        check_alike([once.task(None), twice.task(None)])


def test_run_that_was_interrupted_keeps_its_place(tmp_path):
    """It shares no batch with trials that are at another step."""
    folder = tmp_path / FOUR[0].id
    (folder / "checkpoints").mkdir(parents=True)
    write_trial(folder, FOUR[0], {})
    (folder / "checkpoints" / "00000007-00000006.json").touch()
    other = trial(Fish())
    jobs = make_jobs([*FOUR, other], tmp_path, RunOptions(), on_gpu=True)
    assert jobs == [FOUR[:1], FOUR[1:], [other]]


def test_one_run_of_each_dataset_comes_first(tmp_path):
    """The cost of a dataset is known only when one of its runs has finished."""
    first = [trial(ERM(), seed=seed) for seed in range(3)]
    second = [trial(ERM(), dataset="ColoredDigits", seed=seed) for seed in range(2)]
    jobs = make_jobs([*first, *second], tmp_path, RunOptions(), on_gpu=False)
    assert jobs == [[one] for one in (first[0], second[0], *first[1:], *second[1:])]


def test_trials_with_splits_of_different_sizes_do_not_share_a_batch():
    """Groups of images stay in one split, so its size depends on the trial seed. A batch has one list of sizes."""
    columns = ("path", "path", "label", "label", "domain", "domain", "group", "patient")
    plain = Folder(title="sites", domains=("a", "b", "c"), classes=("x", "y"), content="0")
    grouped = dataclasses.replace(plain, file="metadata.csv", columns=columns)
    training = dataclasses.replace(plain.training, network="small_cnn", image_size=32)
    for dataset, expected in ((plain, [3]), (grouped, [2, 1])):
        options = {"test_domains": (0,), "training": training, "steps": 3, "evaluate_every": 1}
        trials = [Trial(dataset=dataset, algorithm=ERM(), seed=s, trial_seed=s // 2, **options) for s in range(3)]
        assert [len(group) for group in group_alike(trials, most=8)] == expected
    with pytest.raises(UsageError, match="different values of trial_seed"):
        check_alike([trials[0].task(None), trials[2].task(None)])


def test_a_batch_writes_the_records_of_single_runs(tmp_path):
    assert run_batch(FOUR, folders(tmp_path / "batch", FOUR), RunOptions()) == [None] * 4
    for one in FOUR:
        run(one, tmp_path / "alone" / one.id)
        assert numbers(tmp_path / "batch", one) == approximate_numbers(tmp_path / "alone", one)


def test_a_diverging_trial_does_not_disturb_its_batch(tmp_path):
    wild = overflowing(FOUR[1].training)
    trials = [dataclasses.replace(t, algorithm=ERM()) for t in FOUR[:3]]
    trials[1] = dataclasses.replace(trials[1], training=wild)
    errors = run_batch(trials, folders(tmp_path, trials), RunOptions())
    assert errors[0] is errors[2] is None
    assert isinstance(errors[1], DivergedError)
    assert "Expected finite weights" in str(errors[1])
    by_id = {r.id: r for r in read_runs(tmp_path)}
    assert [by_id[t.id].status for t in trials] == ["done", "diverged", "done"]
    assert "Expected finite weights" in by_id[trials[1].id].failure


def test_a_batch_ends_when_all_its_trials_have_diverged(tmp_path):
    wild = overflowing(FOUR[0].training)
    trials = [dataclasses.replace(t, algorithm=ERM(), training=wild) for t in FOUR[:2]]
    errors = run_batch(trials, folders(tmp_path, trials), RunOptions())
    assert all(isinstance(error, DivergedError) for error in errors)
    assert [r.status for r in read_runs(tmp_path)] == ["diverged"] * 2


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Two trials, the folder of their finished batch, and that of a batch that a signal stopped."""
    trials, whole, parts = FOUR[:2], tmp_path / "whole", tmp_path / "parts"
    run_batch(trials, folders(whole, trials), RunOptions())
    real, seen = run_files.append_record, []

    def append(path, record):
        real(path, record)
        seen.append(record)
        if len(seen) == 3:  # in the second evaluation
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "append_record", append)
        with pytest.raises(StoppedError, match="SIGTERM"):
            run_batch(trials, folders(parts, trials), RunOptions())
    return trials, whole, parts


def test_a_stopped_batch_resumes_as_a_batch(stopped):
    trials, whole, parts = stopped
    assert make_jobs(trials, parts, RunOptions(), on_gpu=True) == [trials]
    rounds = []
    assert run_batch(trials, folders(parts, trials), RunOptions(), on_round=rounds.append) == [None, None]
    assert rounds[0] > 1  # it did not start again
    for one in trials:
        assert numbers(parts, one) == numbers(whole, one)


def test_trials_of_a_stopped_batch_resume_alone_from_their_checkpoints(stopped):
    trials, whole, parts = stopped
    for one in trials:
        run(one, parts / one.id)
        assert numbers(parts, one) == approximate_numbers(whole, one)


def test_trials_of_a_stopped_batch_that_are_at_different_steps_resume_alone(stopped):
    trials, whole, parts = stopped
    shutil.rmtree(parts / trials[1].id / "checkpoints")
    assert make_jobs(trials, parts, RunOptions(), on_gpu=True) == [trials[:1], trials[1:]]
    assert run_job(trials, parts, RunOptions()) == [None, None]
    for one in trials:
        assert numbers(parts, one) == approximate_numbers(whole, one)


def test_a_damaged_checkpoint_does_not_disturb_its_batch(stopped):
    trials, whole, parts = stopped
    for path in (parts / trials[1].id / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    good, bad = run_job(trials, parts, RunOptions())
    assert good is None
    assert numbers(parts, trials[0]) == approximate_numbers(whole, trials[0])
    assert "Expected a valid checkpoint" in bad


@pytest.mark.parametrize("begun", [False, True])
def test_a_batch_leaves_a_trial_to_the_process_that_began_it(tmp_path, begun):
    """The directory is locked by another process, or that process has begun the trial and ended."""
    first, second = FOUR[:2]
    if begun:
        run(first, tmp_path / "run")
        (tmp_path / "run").rename(tmp_path / first.id)
        (tmp_path / first.id / "done").unlink()
        before = {p: p.read_bytes() for p in (tmp_path / first.id).rglob("*") if p.is_file() and p.name != "lock"}
        errors = run_batch([first, second], folders(tmp_path, [first, second]), RunOptions())
        assert all(path.read_bytes() == content for path, content in before.items())
    else:
        (tmp_path / first.id).mkdir()
        with lock_folder(tmp_path / first.id):
            errors = run_batch([first, second], folders(tmp_path, [first, second]), RunOptions())
        assert [path.name for path in (tmp_path / first.id).iterdir()] == ["lock"]
    assert isinstance(errors[0], UnevenBatchError if begun else InUseError)
    assert errors[1] is None
    assert (tmp_path / second.id / "done").exists()


def test_a_batch_that_fails_as_a_whole_leaves_its_trials_interrupted(tmp_path, monkeypatch):
    """They may succeed alone: a single trial needs less memory."""
    monkeypatch.setattr(Session, "scores", lambda session: 1 / 0)
    errors = run_job(FOUR[:2], tmp_path, RunOptions())
    assert all("ZeroDivisionError" in error for error in errors)
    assert not list(tmp_path.glob("*/failed.json"))
    assert len(list(tmp_path.glob("*/trial.json"))) == 2


def test_a_batch_that_fails_before_it_begins_notes_the_reason_for_every_trial(tmp_path):
    trials = [trial(ERM(), dataset="ColoredMNIST", seed=seed) for seed in (0, 1)]
    errors = run_job(trials, tmp_path, RunOptions(data=tmp_path / "missing"))
    for one, error in zip(trials, errors, strict=True):
        assert json.loads((tmp_path / one.id / "failed.json").read_text())["error"] == error


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_trials_run_in_batches(tmp_path):
    options = RunOptions(engine=Engine("cuda"))
    outcomes = list(run_all([*FOUR, trial(Fish())], tmp_path / "gpu", options))
    assert [o.error for o in outcomes] == [None] * 5
    for one in FOUR:
        run(one, tmp_path / "cpu" / one.id)
        assert numbers(tmp_path / "gpu", one) == approximate_numbers(tmp_path / "cpu", one)
