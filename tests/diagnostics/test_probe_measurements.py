"""Divergence of the copies, and the invariant gradient angle, against their definitions."""

import math

import pytest
import torch
from support import K, batches, toy
from watching import alone, flat, watched

from pogm import ARM, ERM, MTL, POGM, Fish
from pogm.diagnostics import Probe

divergence_probe = Probe(every=1, divergence=True)


@pytest.mark.parametrize("algorithm", [ERM(), POGM()])
def test_divergence_is_the_kl_divergence_on_the_images_of_the_first_domain(algorithm):
    measured, states = watched(algorithm, divergence_probe, rounds=2)
    _, problem = toy(algorithm)
    for number in range(2):
        x = batches(seed=number)[0].x
        copies = [problem.model(alone(algorithm, states, i)[number], states[number]) for i in range(K)]
        for i in range(K):
            for j in range(K):
                p, q = copies[i](x[i]).softmax(-1), copies[j](x[i]).softmax(-1)
                expected = (p * (p / q).log()).sum(-1).mean().item()
                assert measured["divergence"][number][i][j] == pytest.approx(expected, abs=1e-12)
                assert (i == j) == (expected < 1e-12)


def test_divergence_uses_predictions_in_evaluation_mode():
    """With the running statistics of each copy. Afterwards, the network is in training mode again."""
    measured, states = watched(ERM(), divergence_probe, batch_norm=True)
    _, problem = toy(ERM(), batch_norm=True)
    x = batches()[0].x
    logs = []
    for i in range(K):
        network = toy(ERM(), batch_norm=True)[1].network
        with torch.no_grad():
            network(x[i])  # updates the running statistics, as the training of the copy did
        network.load_state_dict(alone(ERM(), states, i, batch_norm=True)[0], strict=False)
        logs.append(network.eval()(x[0]).log_softmax(-1))
    expected = (logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean().item()
    assert measured["divergence"][0][0][1] == pytest.approx(expected)
    assert problem.network.training


@pytest.mark.parametrize("algorithm", [MTL(), ARM()])
def test_divergence_uses_the_predict_method_of_the_algorithm(algorithm):
    measured, _ = watched(algorithm, divergence_probe)
    matrix = torch.tensor(measured["divergence"][0])
    assert torch.allclose(matrix.diagonal(), torch.zeros(K, dtype=matrix.dtype), atol=1e-9)
    assert (matrix + torch.eye(K) > 0).all()


def expected_cosine(states, number, lag):
    step = flat(states[number].params, states[number - 1].params)
    return torch.cosine_similarity(step, flat(states[number].params, states[number - lag].params), dim=0).item()


@pytest.mark.parametrize("every", [1, 2, 4])
def test_invariant_angle_is_the_cosine_with_the_last_steps(every):
    measured, states = watched(Fish(), Probe(every, lag=4), rounds=12)
    assert measured["round"] == list(range(every, 13, every))
    for number, value in zip(measured["round"], measured["invariant"], strict=True):
        if number < 4:
            assert math.isnan(value), "the lag reaches back before the first round"
        else:
            assert value == pytest.approx(expected_cosine(states, number, 4))


def test_invariant_angle_with_lag_one_is_one():
    measured, _ = watched(ERM(), Probe(every=1, lag=1), rounds=3)
    assert measured["invariant"] == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_cyclic_lag_grows_until_the_snapshot_is_replaced(every):
    measured, states = watched(Fish(), Probe(every, lag=3, cyclic=True), rounds=10)
    for number, value in zip(measured["round"], measured["invariant"], strict=True):
        assert value == pytest.approx(expected_cosine(states, number, (number - 1) % 3 + 1))
    assert every > 1 or measured["invariant"][3] == pytest.approx(1)
