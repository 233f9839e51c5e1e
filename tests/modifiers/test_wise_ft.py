"""WiSE-FT: interpolation between the first and the current weights."""

import pytest
import torch
from promises import assert_batched_equals_single, assert_captured_equals_the_host, assert_resumes, session
from support import assert_close, batches, needs_gpu, toy, trial

from pogm import ERM, SMA, WiSEFT
from pogm._system.errors import UsageError
from pogm.core import trees


def evaluated(modifier, values):
    """Return the evaluated weights for weights θ₀, θ₁, ..., which are numbers."""
    state, problem = toy(ERM())
    state = state._replace(params={"w": torch.tensor([values[0]], dtype=torch.float64)})
    memory, found = modifier.start(state, problem), [modifier.evaluated(modifier.start(state, problem), state)]
    for step, value in enumerate(values[1:], 1):
        state = state._replace(params={"w": torch.tensor([value], dtype=torch.float64)}, step=torch.tensor(step))
        memory, after = modifier.after(memory, state, [], problem)
        assert after is state, "training continues from the current weights"
        found.append(modifier.evaluated(memory, state))
    return [one.params["w"].item() for one in found]


def test_evaluated_weights_are_the_mixture_of_the_initial_and_the_current_weights():
    assert evaluated(WiSEFT(alpha=0.25), [8.0, 4.0, 0.0]) == pytest.approx([8.0, 7.0, 6.0], rel=1e-14)


def test_start_step_replaces_the_initial_weights_by_those_of_that_step():
    assert evaluated(WiSEFT(alpha=0.25, start_step=2), [1.0, 5.0, 8.0, 4.0, 0.0]) == pytest.approx(
        [1.0, 5.0, 8.0, 7.0, 6.0], rel=1e-14
    )


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, [3.0, 3.0]), (1.0, [3.0, 2.0])])
def test_alpha_0_gives_the_initial_weights_and_alpha_1_the_current_ones(alpha, expected):
    assert evaluated(WiSEFT(alpha=alpha), [3.0, 2.0]) == expected


def test_statistics_of_batch_norm_are_interpolated():
    modifier, (state, problem) = WiSEFT(alpha=0.25), toy(ERM(), batch_norm=True)
    memory, before = modifier.start(state, problem), state.buffers
    with torch.no_grad():
        state, _ = ERM().step(state, batches(), problem)
    memory, state = modifier.after(memory, state, [], problem)
    found = modifier.evaluated(memory, state).buffers
    for name in ("features.1.running_mean", "features.1.running_var"):
        assert not torch.equal(before[name], state.buffers[name])
        torch.testing.assert_close(found[name], 0.75 * before[name] + 0.25 * state.buffers[name])


def test_session_evaluates_the_mixture():
    made = session(trial(ERM(), precision="fp64", modifiers=(WiSEFT(alpha=0.25),)))
    first = trees.map_leaves(torch.clone, dict(made.train_state.state.params))
    for _ in range(3):
        made.step()
    last, tensors = made.train_state.state.params, made.predicting_tensors()
    expected = {name: 0.75 * leaf + 0.25 * last[name] for name, leaf in first.items()}
    assert_close({name: tensors[name] for name in expected}, expected, 1e-12)


@pytest.mark.parametrize("start_step", [0, 1])
def test_batched_trials_with_other_shares_equal_single_trials(start_step):
    assert_batched_equals_single(ERM(), WiSEFT(start_step=start_step), network="mlp", evaluated=True)


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(ERM(), WiSEFT(start_step=3), network="mlp")


def test_wise_ft_and_sma_together_raise():
    with pytest.raises(UsageError, match="chooses the weights to evaluate; found WiSEFT and SMA"):
        session(trial(ERM(), modifiers=(WiSEFT(), SMA())))


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu():
    assert_captured_equals_the_host(ERM(), WiSEFT(start_step=2))
