"""SD."""

import math

import pytest
import torch
from support import B, C, K, assert_close, batches, steps, toy
from torch import nn

from pogm import ERM
from pogm.algorithms.sd import SD
from pogm.core.batch import Batch


def test_loss_is_mean_risk_plus_mean_square_of_the_logits():
    sd = SD(penalty=3.0)
    state, problem = toy(sd)
    (batch,) = batches()
    model = problem.model(state.params, state)
    risk = square = 0.0
    for x, y in zip(batch.x, batch.y, strict=True):
        for logits, label in zip(model(x), y, strict=True):
            risk += nn.functional.cross_entropy(logits, label) / (K * B)
            square += sum(value**2 for value in logits) / (K * B * C)
    loss = sd.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["nll"], risk)
    torch.testing.assert_close(loss.metrics["penalty"], square)
    torch.testing.assert_close(loss.value, risk + 3 * square)


def test_weight_zero_gives_erm():
    assert_close(steps(SD(penalty=0.0), 4).params, steps(ERM(), 4).params)


def test_known_value_of_constant_logits():
    """Logits (a, …, a) give log C + λ a²."""
    sd = SD(penalty=0.5)
    state, problem = toy(sd)
    params = {name: torch.zeros_like(leaf) for name, leaf in state.params.items()}
    params["head.bias"] = torch.full_like(params["head.bias"], 3.0)
    loss = sd.loss(problem.model(params, state), batches()[0], state)
    assert loss.value.item() == pytest.approx(math.log(C) + 0.5 * 9)


def test_logits_stay_bounded_where_those_of_erm_grow():
    """On one minibatch that ERM fits perfectly, its logits grow without limit; the penalty has a finite minimum."""
    (batch,) = batches()
    one = Batch(batch.x[:1, :2], torch.tensor([[0, 1]]))
    sizes = []
    for method in (ERM(), SD(penalty=0.1)):
        state, problem = toy(method, domains=1)
        for _ in range(100):
            state, _ = method.step(state, [one], problem)
        sizes.append(problem.model(state.params, state)(one.x[0]).square().mean())
    assert sizes[1] < sizes[0] / 3
