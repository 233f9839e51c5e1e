"""How far the domains' hypotheses are apart."""

import pytest
import torch
from support import K, batches, toy
from watching import alone, watched

from pogm import ARM, ERM, MTL, POGM
from pogm.diagnostics import Probe

probe = Probe(every=1, divergence=True)


@pytest.mark.parametrize("algorithm", [ERM(), POGM()])
def test_it_is_the_mean_kl_divergence_of_two_copies_on_the_first_ones_images(algorithm):
    measured, states = watched(algorithm, probe, rounds=2)
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


def test_predictions_are_those_of_evaluation():
    """With the running statistics of each copy, not those of the minibatch; and the network trains on as before."""
    measured, states = watched(ERM(), probe, batch_norm=True)
    _, problem = toy(ERM(), batch_norm=True)
    x = batches()[0].x
    logs = []
    for i in range(K):
        network = toy(ERM(), batch_norm=True)[1].network
        with torch.no_grad():
            network(x[i])  # the pass that trained the copy moved them
        network.load_state_dict(alone(ERM(), states, i, batch_norm=True)[0], strict=False)
        logs.append(network.eval()(x[0]).log_softmax(-1))
    expected = (logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean().item()
    assert measured["divergence"][0][0][1] == pytest.approx(expected)
    assert problem.network.training


@pytest.mark.parametrize("algorithm", [MTL(), ARM()])
def test_a_method_that_predicts_images_in_company_is_asked_in_its_way(algorithm):
    measured, _ = watched(algorithm, probe)
    matrix = torch.tensor(measured["divergence"][0])
    assert torch.allclose(matrix.diagonal(), torch.zeros(K, dtype=matrix.dtype), atol=1e-9)
    assert (matrix + torch.eye(K) > 0).all()
