"""Tests of the example package: the contract tests of pogm, and the equations."""

import torch
from pogm_example.confidence_penalty import ConfidencePenalty
from pogm_example.spectral_decoupling import SpectralDecoupling

from pogm import ERM
from pogm.testing import assert_close, check_algorithm, check_modifier, make_batches, make_problem, take_steps


def test_contract_of_the_algorithm():
    check_algorithm(SpectralDecoupling)


def test_contract_of_the_modifier():
    check_modifier(ConfidencePenalty)


def test_loss_is_the_mean_risk_plus_the_squared_logits():
    algorithm = SpectralDecoupling(penalty=0.3)
    state, problem = make_problem(algorithm)
    (batch,) = make_batches()
    model = problem.model(state.params, state)
    logits = model(batch.x.flatten(0, 1))
    expected = torch.nn.functional.cross_entropy(logits, batch.y.flatten()) + 0.3 * logits.square().mean()
    torch.testing.assert_close(algorithm.loss(model, batch, state).value, expected)


def test_without_penalty_it_is_erm():
    assert_close(take_steps(SpectralDecoupling(penalty=0.0), 3).params, take_steps(ERM(), 3).params)


def test_uniform_predictions_have_the_largest_entropy():
    state, problem = make_problem(ERM())
    uniform = {name: torch.zeros_like(leaf) for name, leaf in state.params.items()}
    penalty = ConfidencePenalty(weight=2.0).penalty(problem.model(uniform, state), make_batches()[0])
    torch.testing.assert_close(penalty, torch.full((3,), -2.0 * torch.tensor(4.0).log().item(), dtype=torch.float64))
