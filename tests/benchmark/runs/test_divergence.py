"""Divergence: a run with numbers that are not finite ends with exit code 4, and is no result."""

import dataclasses
import json
import math
import signal

import pytest
import torch
from processes import SHORT, Poison, pogm, records
from support import trial

from pogm import ERM, MGDA, POGM, CAGrad, PCGrad, Reptile, UPGrad
from pogm._system.errors import DivergedError, StoppedError
from pogm.benchmark.results.accuracy_tables import dataset_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.benchmark.runs.session_facts import TrajectoryWarning
from pogm.engine.session import Engine, Session
from pogm.modifiers.base import Modifier


def with_lr(algorithm, lr, **options):
    """Return a short trial with a learning rate, which may be above the limit of the field."""
    short = trial(algorithm, **({"steps": 6, "evaluate_every": 5} | options))
    training = dataclasses.replace(short.training)
    object.__setattr__(training, "lr", lr)
    return dataclasses.replace(short, training=training)


class InfiniteLoss(Modifier):
    """Modifier that makes the loss infinite and leaves its gradient as it is."""

    def penalty(self, model, batch):
        return torch.tensor(math.inf)


def test_a_diverged_run_has_a_record_of_valid_json_and_exit_code_4(tmp_path):
    words = ("--algorithm", "ERM", "--steps", 41, "--set", "lr=1e30", "--out", tmp_path / "run")
    end = pogm("run", "--dataset", "RotatedDigits", *SHORT, *words)
    assert end.code == 4
    assert "Expected finite weights and losses; found NaN" in end.err
    assert records(tmp_path / "run")[-1]["status"] == "diverged"
    assert "finite" in json.loads((tmp_path / "run" / "failed.json").read_text())["error"]
    assert not (tmp_path / "run" / "done").exists()


def test_weights_that_overflow_after_a_finite_loss_are_detected(tmp_path):
    with pytest.raises(DivergedError, match=r"infinity in the weights.*at step 0"):
        run(with_lr(ERM(), 1e39), tmp_path / "run")


def test_an_infinite_loss_is_detected_although_the_weights_are_finite(tmp_path):
    with pytest.raises(DivergedError, match="no finite loss since the last evaluation"):
        run(trial(ERM(), modifiers=(InfiniteLoss(),)), tmp_path / "run")


@pytest.mark.parametrize("method", [POGM, CAGrad, PCGrad, MGDA, UPGrad, Reptile])
def test_a_run_that_skips_every_round_has_diverged_and_is_shown_so_in_tables(tmp_path, method):
    run(with_lr(ERM(), 1e-3), tmp_path / "erm")
    with pytest.raises(DivergedError, match="only skipped rounds"):
        run(with_lr(method(), 1e30), tmp_path / "skipped")
    assert not (tmp_path / "skipped" / "done").exists()
    assert records(tmp_path / "skipped")[-1]["metrics"]["skipped"] == 1
    runs = read_runs(tmp_path)
    assert {found.label: found.status for found in runs} == {"ERM": "done", method.__name__: "diverged"}
    cells = {row.label: row.cells[0].reason for row in dataset_table(runs, "RotatedDigits", TRAINING_DOMAIN).rows}
    assert cells == {"ERM": "", method.__name__: "diverged"}


def test_a_trial_of_a_batch_that_skips_every_round_has_diverged(tmp_path):
    trials = [with_lr(POGM(), lr, precision="fp64") for lr in (1e-3, 1e300)]
    with pytest.warns(TrajectoryWarning):
        errors = run_batch(trials, [tmp_path / one.id for one in trials], RunOptions())
    assert errors[0] is None
    assert isinstance(errors[1], DivergedError)
    assert "only skipped rounds" in str(errors[1])


@pytest.mark.parametrize("method", [POGM, CAGrad, MGDA])
def test_a_run_whose_trajectories_are_zero_is_a_result(tmp_path, method):
    """It skips every round, too, because no domain asks for a change of the weights."""
    run(with_lr(method(inner_optimizer="sgd"), 1e-100), tmp_path / "run")
    assert [found["metrics"]["skipped"] for found in records(tmp_path / "run")] == [1, 1]
    assert (tmp_path / "run" / "done").exists()


def test_evaluations_without_a_round_between_them_are_no_divergence(tmp_path):
    run(trial(POGM(inner_steps=5), steps=11, evaluate_every=2), tmp_path / "run")
    assert (tmp_path / "run" / "done").exists()
    without_loss = [found["metrics"].get("loss") is None for found in records(tmp_path / "run")]
    assert without_loss == [True, True, False, True, True, False]


def test_a_run_that_is_stopped_before_an_evaluation_diverges_there(tmp_path):
    """The rounds before the stop count: none is left when the run resumes."""
    infinite = trial(ERM(), modifiers=(InfiniteLoss(),))
    with pytest.raises(StoppedError):
        run(infinite, tmp_path / "run", on_round=lambda count: count and signal.raise_signal(signal.SIGTERM))
    with pytest.raises(DivergedError, match="at step 0"):
        run(infinite, tmp_path / "run")


def test_a_domain_that_is_not_finite_is_named_and_does_not_change_the_weights(tmp_path):
    poisoned = trial(POGM(), modifiers=(Poison(),), steps=11)
    named = pytest.warns(TrajectoryWarning, match=r"skipped up to step 0: domain 30 \(100% of rounds\)\.")
    with named, pytest.raises(DivergedError, match="only skipped rounds"):
        run(poisoned, tmp_path / "run")
    assert [found["metrics"]["nonfinite"] for found in records(tmp_path / "run")] == [[0, 1, 0, 0, 0]]
    session = Session([poisoned.task(None)], Engine())
    first = session.train_state.state.params
    session.step()
    assert all(torch.equal(leaf, session.train_state.state.params[name]) for name, leaf in first.items())
