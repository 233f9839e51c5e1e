"""SMA: the mean of the weights since a step, evaluated, selected and stored."""

import dataclasses

import pytest
import torch
from promises import assert_batched_equals_single, assert_captured_equals_the_host, assert_resumes, session
from safetensors.torch import load_file
from support import assert_close, batches, needs_gpu, toy, trial

import pogm
from pogm import ERM, POGM, SMA, SWAD, Learner
from pogm._system.errors import UsageError
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import run
from pogm.core import trees
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.modifiers.base import Modifier


def averages(sma, values):
    """Return the averages for weights θ₀, θ₁, ..., which are numbers."""
    state, problem = toy(ERM())
    state = state._replace(params={"w": torch.tensor([values[0]], dtype=torch.float64)})
    memory, found = sma.start(state, problem), []
    for step, value in enumerate(values[1:], 1):
        state = state._replace(params={"w": torch.tensor([value], dtype=torch.float64)}, step=torch.tensor(step))
        memory, after = sma.after(memory, state, [], problem)
        assert after is state, "training continues from the current weights"
        found.append(sma.evaluated(memory, state).params["w"].item())
    return found


def test_average_is_the_current_weights_up_to_t0_then_the_mean_since_t0():
    assert averages(SMA(start_step=2), [9.0, 8.0, 1.0, 2.0, 6.0]) == pytest.approx([8.0, 1.0, 1.5, 3.0], rel=1e-14)


def test_average_from_step_0_includes_the_initial_weights():
    assert averages(SMA(start_step=0), [3.0, 1.0, 2.0]) == pytest.approx([2.0, 2.0], rel=1e-14)


def test_default_starts_after_100_steps():
    assert SMA().start_step == 100


def steps(made, count):
    """Return the weights of a session after each step."""
    found = []
    for _ in range(count):
        made.step()
        found.append(trees.map_leaves(torch.clone, dict(made.train_state.state.params)))
    return found


@pytest.mark.parametrize("algorithm", [ERM(), POGM()])
def test_session_evaluates_the_mean_and_trains_from_the_current_weights(algorithm):
    one = trial(algorithm, precision="fp64", modifiers=(SMA(start_step=2),))
    with_, without = session(one), session(dataclasses.replace(one, modifiers=()))
    weights = steps(with_, 5)
    assert_close(weights, steps(without, 5), 0.0)
    mean = trees.mean(trees.stack(weights[1:]))
    tensors = with_.predicting_tensors()
    assert_close({name: tensors[name] for name in mean}, mean, 1e-12)
    without.train_state = without.train_state._replace(state=without.train_state.state._replace(params=mean))
    assert with_.accuracies() == without.accuracies()
    assert_close(with_.train_state.state.params, weights[-1], 0.0)


def test_run_selects_and_stores_averaged_weights(tmp_path):
    one = trial(ERM(), precision="fp64", steps=13, evaluate_every=3, modifiers=(SMA(start_step=4),))
    run(one, tmp_path / "run")
    (found,) = read_runs(tmp_path)
    plain = session(one)
    tensors = {
        evaluation.step: {name: leaf.clone() for name, leaf in plain.predicting_tensors().items()}
        for evaluation in train(plain, one.schedule)
    }
    assert [record["step"] for record in found.records] == list(tensors)
    (file,) = (tmp_path / "run" / "model").glob("weights-*.safetensors")
    step = int(file.stem.partition("-")[2])
    stored = load_file(file)
    assert_close(stored, {name: tensors[step][name] for name in stored}, 0.0)
    loaded = dict(pogm.load(tmp_path / "run").network.named_parameters())
    assert_close(loaded, {name: stored[name].float() for name in loaded}, 0.0)


def test_batched_trials_equal_single_trials():
    assert_batched_equals_single(POGM(), SMA(start_step=1), network="mlp", evaluated=True)


def test_model_of_a_batched_trial_is_that_of_a_single_trial():
    trials = [trial(ERM(), precision="fp64", modifiers=(SMA(start_step=1),), seed=seed) for seed in (0, 1)]
    together = Session([one.task(None) for one in trials], Engine())
    apart = [session(one) for one in trials]
    for made in (together, *apart):
        steps(made, 3)
    for row, one in enumerate(apart):
        assert_close(together.predicting_tensors(row), one.predicting_tensors(), 1e-8)


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(ERM(), SMA(start_step=1), network="mlp")


def test_statistics_of_batch_norm_are_averaged():
    """Known values: the averages of the running mean, computed from those after every step; the counter is current."""
    sma, (state, problem) = SMA(start_step=1), toy(ERM(), batch_norm=True)
    memory, seen = sma.start(state, problem), []
    for seed in range(3):
        with torch.no_grad():
            state, _ = ERM().step(state, batches(seed=seed), problem)
        memory, state = sma.after(memory, state, [], problem)
        seen.append(state.buffers)
    found = sma.evaluated(memory, state).buffers
    for name in ("features.1.running_mean", "features.1.running_var"):
        assert not torch.equal(seen[0][name], seen[2][name])
        torch.testing.assert_close(found[name], torch.stack([one[name] for one in seen]).mean(0), rtol=1e-12, atol=0)
    assert found["features.1.num_batches_tracked"] == seen[2]["features.1.num_batches_tracked"] == 3


def test_two_modifiers_that_choose_weights_raise():
    assert Modifier.find_evaluated((SMA(),)) == 0
    assert Modifier.find_evaluated((SWAD(),)) is None
    for both in ((SMA(), SMA()), (SMA(), SWAD()), (SWAD(), SMA())):
        names = " and ".join(type(one).__name__ for one in both)
        with pytest.raises(UsageError, match=f"one modifier that chooses the weights to evaluate; found {names}"):
            session(trial(ERM(), modifiers=both))


def test_learner_has_current_weights_and_returns_a_module_with_the_mean():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4)).double()
    learner = Learner(module, ERM(), modifiers=[SMA(start_step=1)])
    seen = []
    for number in range(3):
        learner.step(batches(seed=number)[0])
        seen.append({name: leaf.detach().clone() for name, leaf in module.state_dict().items()})
    averaged = learner.evaluated_module()
    assert averaged is not module
    assert_close(dict(module.state_dict()), seen[-1], 0.0)
    for name, leaf in averaged.state_dict().items():
        expected = (
            torch.stack([one[name].double() for one in seen]).mean(0) if leaf.is_floating_point() else seen[-1][name]
        )
        torch.testing.assert_close(leaf, expected, rtol=1e-12, atol=1e-14)
    with pytest.raises(UsageError, match="chooses the weights to evaluate"):
        Learner(module, ERM(), modifiers=[SMA(), SMA()])


def test_learner_without_averages_returns_a_copy():
    module = torch.nn.Linear(6, 4).double()
    learner = Learner(module, ERM())
    learner.step(batches()[0])
    assert_close(dict(learner.evaluated_module().state_dict()), dict(module.state_dict()), 0.0)


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu():
    assert_captured_equals_the_host(ERM(), SMA(start_step=1))
