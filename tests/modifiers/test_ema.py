"""EMA: the exponential moving average of the weights, with bias correction."""

import pytest
import torch
from promises import assert_batched_equals_single, assert_captured_equals_the_host, assert_resumes, session
from support import assert_close, needs_gpu, toy, trial

from pogm import EMA, ERM, SMA
from pogm._system.errors import UsageError
from pogm.core import trees


def averages(ema, values):
    """Return the averages for weights θ₀, θ₁, ..., which are numbers."""
    state, problem = toy(ERM())
    state = state._replace(params={"w": torch.tensor([values[0]], dtype=torch.float64)})
    memory, found = ema.start(state, problem), []
    for step, value in enumerate(values[1:], 1):
        state = state._replace(params={"w": torch.tensor([value], dtype=torch.float64)}, step=torch.tensor(step))
        memory, after = ema.after(memory, state, [], problem)
        assert after is state, "training continues from the current weights"
        found.append(ema.evaluated(memory, state).params["w"].item())
    return found


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_average_equals_the_sum_with_normalised_coefficients(decay):
    values = [7.0, 1.0, -2.0, 0.5, 3.0, 3.0]
    expected = []
    for last in range(1, len(values)):
        coefficients = [decay ** (last - step) for step in range(1, last + 1)]
        total = sum(share * value for share, value in zip(coefficients, values[1:], strict=False))
        expected.append(total / sum(coefficients))
    assert averages(EMA(decay=decay), values) == pytest.approx(expected, rel=1e-12)


def test_first_average_is_the_first_weights_and_not_the_initial_ones():
    assert averages(EMA(), [100.0, 2.0]) == [2.0]


def test_decay_0_gives_the_current_weights():
    assert averages(EMA(decay=0.0), [1.0, 2.0, 3.0]) == [2.0, 3.0]


def test_session_evaluates_the_average():
    made = session(trial(ERM(), precision="fp64", modifiers=(EMA(decay=0.5),)))
    weights = []
    for _ in range(3):
        made.step()
        weights.append(trees.map_leaves(torch.clone, dict(made.train_state.state.params)))
    coefficients = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) / 7
    expected = trees.combine(coefficients, trees.stack(weights))
    tensors = made.predicting_tensors()
    assert_close({name: tensors[name] for name in expected}, expected, 1e-12)


def test_batched_trials_with_other_decays_equal_single_trials():
    assert_batched_equals_single(ERM(), EMA(decay=0.9), network="mlp", evaluated=True)


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(ERM(), EMA(), network="mlp")


def test_ema_and_sma_together_raise():
    with pytest.raises(UsageError, match="chooses the weights to evaluate; found EMA and SMA"):
        session(trial(ERM(), modifiers=(EMA(), SMA())))


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu():
    assert_captured_equals_the_host(ERM(), EMA(decay=0.9))
