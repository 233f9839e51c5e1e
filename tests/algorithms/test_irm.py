"""IRM."""

import pytest
import torch
from support import C, K, batches, toy
from torch import nn

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.algorithms.irm import IRM
from pogm.algorithms.penalties import scale_derivatives
from pogm.core.batch import Batch
from pogm.core.model import over_samples


def loss_at(irm, batch, domains=K):
    state, problem = toy(irm, domains=domains)
    return irm.loss(problem.model(state.params, state), batch, state)


def logits_of(irm, batch):
    state, problem = toy(irm)
    return over_samples(problem.model(state.params, state), batch.x)


def slope(logits, y):
    """Return the derivative of the mean cross-entropy with respect to a scale of the logits, by autograd."""
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(nn.functional.cross_entropy(factor * logits, y), factor)[0]


def test_loss_is_risk_plus_products_of_derivatives_of_both_halves():
    irm = IRM(penalty=7.0, penalty_anneal_iters=0)
    (batch,) = batches(size=7)
    logits = logits_of(irm, batch)
    products = [slope(v[0::2], y[0::2]) * slope(v[1::2], y[1::2]) for v, y in zip(logits, batch.y, strict=True)]
    risks = [nn.functional.cross_entropy(v, y) for v, y in zip(logits, batch.y, strict=True)]

    loss = loss_at(irm, batch)
    torch.testing.assert_close(loss.metrics["nll"], sum(risks) / K)
    torch.testing.assert_close(loss.metrics["penalty"], sum(products) / K)
    torch.testing.assert_close(loss.value, sum(risks) / K + 7 * sum(products) / K)


@pytest.mark.parametrize("soft", [False, True])
def test_derivatives_equal_finite_differences_in_the_scale(soft):
    torch.manual_seed(0)
    logits = torch.randn(5, C, dtype=torch.float64)
    y = torch.rand(5, C, dtype=torch.float64).softmax(-1) if soft else torch.randint(C, (5,))
    near = [nn.functional.cross_entropy(s * logits, y, reduction="none") for s in (1 + 1e-5, 1 - 1e-5)]
    torch.testing.assert_close(
        scale_derivatives(logits[None], y[None])[0], (near[0] - near[1]) / 2e-5, rtol=1e-7, atol=1e-9
    )


def test_derivative_has_a_known_value():
    """softmax(log 3, 0) = (3/4, 1/4), so the derivative for class 0 is (3/4 - 1) log 3."""
    logits = torch.tensor([[[3.0, 1.0]]], dtype=torch.float64).log()
    known = -0.25 * torch.tensor(3.0, dtype=torch.float64).log()
    torch.testing.assert_close(scale_derivatives(logits, torch.tensor([[0]])), known.reshape(1, 1))


def test_penalty_can_be_negative():
    signs = {loss_at(IRM(), batches(seed=seed)[0]).metrics["penalty"].sign().item() for seed in range(20)}
    assert signs == {-1.0, 1.0}


def test_gradient_equals_finite_differences():
    irm = IRM(penalty=50.0, penalty_anneal_iters=0)
    state, problem = toy(irm)
    (batch,) = batches()
    gradient, _ = irm.gradient(state, batch, problem)
    bump = torch.zeros_like(state.params["head.bias"])
    bump[1] = 1e-6
    near = [
        irm.loss(problem.model(state.params | {"head.bias": state.params["head.bias"] + side}, state), batch, state)
        for side in (bump, -bump)
    ]
    expected = (near[0].value - near[1].value) / 2e-6
    torch.testing.assert_close(gradient["head.bias"][1], expected, rtol=1e-6, atol=1e-8)


def test_zero_penalty_gives_erm_and_one_domain_works():
    irm = IRM(penalty=0.0, penalty_anneal_iters=0)
    state, problem = toy(irm, domains=1)
    (batch,) = batches(domains=1)
    found, _ = irm.gradient(state, batch, problem)
    expected, _ = ERM().gradient(state, batch, problem)
    torch.testing.assert_close(found, expected)
    assert irm.min_domains == 1
    assert loss_at(IRM(), batch, domains=1).metrics["penalty"] != 0


def test_labels_can_be_probabilities():
    (batch,) = batches()
    soft = Batch(batch.x, nn.functional.one_hot(batch.y, C).double())
    torch.testing.assert_close(loss_at(IRM(), soft).value, loss_at(IRM(), batch).value)


def test_minibatch_of_one_sample_raises():
    with pytest.raises(UsageError, match="batch_size"):
        loss_at(IRM(), batches(size=1)[0])
