"""Runs that differ only in modifiers that do not change the training are trained once.

Each of them writes what it would write alone.
"""

import dataclasses
import json
import shutil
import signal
import weakref

import pytest
import torch
from support import assert_close, needs_gpu, trial

from pogm import ERM, POGM, SMA, SWAD, Mixup
from pogm._system.errors import DivergedError, StoppedError, UsageError
from pogm.benchmark.executors.jobs import make_jobs, take_job
from pogm.benchmark.executors.local import run_all
from pogm.benchmark.executors.worker import run_job
from pogm.benchmark.plan.shared_training import make_task, share_training
from pogm.benchmark.progress import estimate
from pogm.benchmark.runs import run_files
from pogm.benchmark.runs.provenance import read_provenance
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.core import trees
from pogm.core.hyperparameters import hyper
from pogm.diagnostics import Probe
from pogm.engine.session import Engine, Session
from pogm.modifiers.base import Modifier
from pogm.modifiers.ema import EMA
from pogm.modifiers.t3a import T3A
from pogm.modifiers.tent import TENT


@dataclasses.dataclass(frozen=True)
class Failing(Modifier):
    """A modifier that fails at the start if it is bad, and would change the weights if it could."""

    changes_training = False
    abstract = True

    bad: bool = hyper(False)

    def start(self, state, problem):
        if self.bad:
            raise UsageError("Expected a good modifier; found a bad one. Leave it out.")
        return {}

    def after(self, memory, state, batches, problem):
        return memory, state._replace(params=trees.map_leaves(torch.zeros_like, state.params))


AVERAGE = SMA(start_step=2)
WINDOW = SWAD(converge=1, tolerate=1)
CHANGES = ((), (AVERAGE,), (WINDOW,), (T3A(),), (EMA(decay=0.5),))


def several(algorithm, changes=CHANGES, network="small_cnn", **options):
    """Return a trial with each of the lists of modifiers."""
    found = [trial(algorithm, modifiers=modifiers, **options) for modifiers in changes]
    return [
        dataclasses.replace(one, training=dataclasses.replace(one.training, network=network, batch_size=4))
        for one in found
    ]


def folders(root, trials):
    return [root / one.id for one in trials]


def content(folder):
    """Return what a finished run has written, without times and memory."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds_per_step"], record["memory_gb"]
    model = {path.name: path.read_bytes() for path in (folder / "model").glob("*.safetensors")}
    assert (folder / "done").exists()
    assert model
    return records, model, json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2)], ids=["ERM", "POGM"])
def test_runs_that_share_their_training_write_the_bits_of_single_runs(tmp_path, algorithm):
    trials = several(algorithm, probe=Probe(every=4, lag=4))
    rounds = []
    assert run_batch(trials, folders(tmp_path / "shared", trials), RunOptions(), on_round=rounds.append) == [None] * 5
    assert rounds == [*range(0, trials[0].steps + 1, algorithm.minibatches)], "one training"
    for one in trials:
        run(one, tmp_path / "alone" / one.id)
        assert content(tmp_path / "shared" / one.id) == content(tmp_path / "alone" / one.id), one.label
    assert read_provenance("shared_training", tmp_path / "shared" / trials[0].id) == 5
    assert read_provenance("shared_training", tmp_path / "alone" / trials[0].id) is None


@pytest.mark.parametrize("engine", [Engine(trials="apart"), Engine(trials="vmap")], ids=["apart", "vmap"])
def test_several_seeds_share_a_batch_and_their_runs_share_the_training(engine):
    options = {"network": "mlp", "precision": "fp64"}
    changes = CHANGES[:3]
    trials = [one for seed in (0, 1) for one in several(ERM(), changes, seed=seed, **options)]
    tasks = [make_task(group, None) for group in share_training(trials)]
    together = Session(tasks, engine)
    assert (len(tasks), len(together.rows)) == (2, 6)
    apart = [Session([one.task(None)], Engine()) for one in trials]
    for step in range(4):
        for each in (together, *apart):
            each.step()
        observed = together.observe(step)
        for row, each in enumerate(apart):
            (expected,) = each.observe(step)
            assert observed[row] == pytest.approx(expected)
    found, finals, metrics = together.scores(), together.final(), together.fetch_metrics()
    for row, each in enumerate(apart):
        assert found[row]["accuracy"] == pytest.approx(each.scores()[0]["accuracy"])
        assert metrics[row]["loss"] == pytest.approx(each.fetch_metrics()[0]["loss"])
        assert_close(together.predicting_tensors(row), each.predicting_tensors(), 1e-8)
        (end,) = each.final()
        assert (finals[row] is None) == (end is None) == (row % 3 < 2)
        if end is not None:
            assert finals[row][0] == end[0]


def test_trials_are_grouped_by_what_they_train():
    erm, averaged, window = several(ERM(), CHANGES[:3])
    mixed, mixed_window, window_mixed = several(ERM(), ((Mixup(),), (Mixup(), WINDOW), (WINDOW, Mixup())))
    (other,) = several(ERM(), ((WINDOW,),), seed=1)
    trials = [window, mixed, erm, window_mixed, other, averaged, mixed_window]
    # The random numbers of Mixup depend on its position, so SWAD before it changes the training.
    assert share_training(trials) == [[erm, averaged, window], [mixed, mixed_window], [window_mixed], [other]]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_jobs_contain_all_trials_that_share_their_training(tmp_path, on_gpu):
    first, second = several(ERM(), CHANGES[:2]), several(ERM(), CHANGES[:2], seed=1)
    alone = several(POGM(), CHANGES[1:2])
    jobs = make_jobs([*first, *alone, *second], tmp_path, RunOptions(), on_gpu)
    assert jobs == ([first + second, alone] if on_gpu else [first, alone, second])


def test_trials_of_a_job_that_others_train_are_left_out(tmp_path):
    """The rest of a batch must have the same modifiers for every seed, so it may become several jobs."""
    first, second = several(ERM(), CHANGES[:3]), several(ERM(), CHANGES[:3], seed=1)
    jobs = [first + second]
    taken = [take_job(jobs, tmp_path, lambda one: one != second[1])]
    while jobs:
        taken.append(take_job(jobs, tmp_path, lambda one: True))
    assert sorted(taken, key=len) == [[second[0], second[2]], first]
    for job in taken:
        assert run_batch(job, folders(tmp_path, job), RunOptions()) == [None] * len(job)


def test_a_sweep_on_a_cpu_trains_shared_runs_once(tmp_path):
    trials = [*several(ERM(), CHANGES[:3]), *several(POGM(), CHANGES[:1])]
    outcomes = {outcome.trial.id: outcome.error for outcome in run_all(trials, tmp_path, RunOptions(), workers=2)}
    assert outcomes == {one.id: None for one in trials}
    shared = [read_provenance("shared_training", tmp_path / one.id) for one in trials]
    assert shared == [3, 3, 3, None]


def test_a_modifier_cannot_change_the_training_that_it_shares(tmp_path):
    plain, wrong = several(ERM(), ((), (Failing(),)))
    assert run_batch([plain, wrong], folders(tmp_path, [plain, wrong]), RunOptions()) == [None, None]
    run(plain, tmp_path / "alone" / plain.id)
    assert content(tmp_path / plain.id) == content(tmp_path / "alone" / plain.id)
    assert type("Other", (SMA,), {"after": Failing.after}).changes_training, "so it is trained alone"
    with pytest.raises(
        TypeError, match="Expected changes_training = True, because Loss overrides penalty; found False"
    ):
        type("Loss", (Failing,), {"penalty": lambda self, model, batch: 1.0})


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Trials that share their training, the folder of finished runs, and that of runs that a signal stopped."""
    trials, whole, parts = several(ERM(), CHANGES[:3]), tmp_path / "whole", tmp_path / "parts"
    run_batch(trials, folders(whole, trials), RunOptions())
    real, seen = run_files.append_record, []

    def append(path, record):
        real(path, record)
        seen.append(record)
        if len(seen) == 5:  # in the second evaluation
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "append_record", append)
        with pytest.raises(StoppedError, match="SIGTERM"):
            run_batch(trials, folders(parts, trials), RunOptions())
    return trials, whole, parts


def test_stopped_runs_resume_together_with_the_same_bits(stopped):
    trials, whole, parts = stopped
    assert make_jobs(trials, parts, RunOptions(), on_gpu=False) == [trials]
    rounds = []
    assert run_batch(trials, folders(parts, trials), RunOptions(), on_round=rounds.append) == [None] * 3
    assert rounds[0] > 1  # it did not start again
    for one in trials:
        assert content(parts / one.id) == content(whole / one.id)


def test_stopped_runs_resume_alone_with_the_same_bits(stopped):
    trials, whole, parts = stopped
    for one in trials:
        run(one, parts / one.id)
        assert content(parts / one.id) == content(whole / one.id)


def test_a_run_that_lost_its_checkpoint_starts_again_alone(stopped):
    trials, whole, parts = stopped
    shutil.rmtree(parts / trials[1].id / "checkpoints")
    assert make_jobs(trials, parts, RunOptions(), on_gpu=False) == [[trials[0], trials[2]], [trials[1]]]
    assert run_job(trials, parts, RunOptions()) == [None] * 3
    for one in trials:
        assert content(parts / one.id) == content(whole / one.id)


def test_a_run_whose_checkpoint_has_other_weights_is_not_mixed_with_the_others(stopped, tmp_path, monkeypatch):
    """It was trained elsewhere, with other rounding."""
    trials, whole, parts = stopped
    real = run_files.RunFiles.restore

    def restore(files, template):
        state, manifest = real(files, template)
        if files.trial == trials[1]:
            moved = trees.map_leaves(lambda leaf: leaf + 1e-3, state.state.params)
            state = state._replace(state=state.state._replace(params=moved))
        return state, manifest

    monkeypatch.setattr(run_files.RunFiles, "restore", restore)
    errors = run_batch(trials, folders(parts, trials), RunOptions())
    assert [error is None for error in errors] == [True, False, True]
    assert "Run it alone" in str(errors[1])
    for one in (trials[0], trials[2]):
        assert content(parts / one.id) == content(whole / one.id)


def test_a_modifier_that_fails_does_not_disturb_the_other_runs(tmp_path):
    """SWAD refuses batch norm that is not frozen. The others still share their training."""
    changes = ((WINDOW,), (), (AVERAGE,), (EMA(decay=0.5),))
    trials = [
        dataclasses.replace(one, training=dataclasses.replace(one.training, network="resnet18", freeze_bn=False))
        for one in several(ERM(), changes, steps=2, evaluate_every=1)
    ]
    errors = run_job(trials, tmp_path, RunOptions())
    assert [error is None for error in errors] == [False, True, True, True]
    assert "Expected frozen batch norm for SWAD" in errors[0]
    assert [(tmp_path / one.id / "done").exists() for one in trials] == [False, True, True, True]
    assert read_provenance("shared_training", tmp_path / trials[3].id) == 2


def test_a_job_that_fails_is_run_in_parts_without_the_memory_of_the_first_session(tmp_path, monkeypatch):
    """All trials together may not fit into the memory."""
    trials = [one for seed in (0, 1) for one in several(ERM(), CHANGES[:3], seed=seed)]
    sessions, alive = [], []
    start, step = Session.__init__, Session.step

    def begin(session, tasks, *args):
        alive.append(sum(other() is not None for other in sessions))
        sessions.append(weakref.ref(session))
        start(session, tasks, *args)

    def fail(session, *args, **options):
        if len(session.rows) > 2:
            raise RuntimeError("out of memory")
        step(session, *args, **options)

    monkeypatch.setattr(Session, "__init__", begin)
    monkeypatch.setattr(Session, "step", fail)
    assert run_job(trials, tmp_path, RunOptions()) == [None] * 6
    # 6 trials fail, then the 2 of ERM succeed; the other 4 fail, and succeed as 2 and 2
    assert alive == [0] * 5
    assert all((tmp_path / one.id / "done").exists() for one in trials)


def test_runs_of_one_modifier_with_different_settings_fail_one_by_one(tmp_path):
    trials = several(ERM(), ((Failing(bad=False),), (Failing(bad=True),)))
    good, bad = run_job(trials, tmp_path, RunOptions())
    assert good is None
    assert "found a bad one" in bad


def test_runs_that_share_their_training_diverge_together(tmp_path):
    trials = several(ERM(), CHANGES[:2])
    wild = dataclasses.replace(trials[0].training)
    object.__setattr__(wild, "lr", 1e300)
    trials = [dataclasses.replace(one, training=wild, precision="fp64") for one in trials]
    errors = run_batch(trials, folders(tmp_path, trials), RunOptions())
    assert all(isinstance(error, DivergedError) for error in errors)
    assert str(tmp_path / trials[1].id) in str(errors[1])


def test_an_estimate_counts_shared_minibatches_once(monkeypatch):
    trials = several(ERM(), CHANGES[:2])
    monkeypatch.setattr(estimate, "measure_cost", lambda one, options: (2.0, 3.0, 1.0))  # minibatch, evaluation, memory
    plain, averaged = estimate.estimates(trials, RunOptions())
    evaluations = 3.0 * len(trials[0].schedule.points())
    assert plain.seconds == 2.0 * trials[0].steps + evaluations
    assert averaged.seconds == evaluations


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_on_a_gpu_shared_runs_write_the_bits_of_single_runs(tmp_path, compiled):
    changes = ((), (AVERAGE,), (WINDOW,), (TENT(),))
    options = RunOptions(engine=Engine("cuda", deterministic=True, compile=compiled))
    trials = [one for seed in (0, 1) for one in several(POGM(), changes, network="mnist_cnn", seed=seed)]
    assert run_batch(trials, folders(tmp_path / "shared", trials), options) == [None] * 8
    for one in trials:
        run(one, tmp_path / "alone" / one.id, options)
        assert content(tmp_path / "shared" / one.id) == content(tmp_path / "alone" / one.id), one.label
