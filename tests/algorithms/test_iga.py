"""IGA."""

import torch
from support import K, assert_close, batches, steps, toy
from torch import nn

from pogm import ERM
from pogm.algorithms.iga import IGA
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.core.random_layers import Dropout


def by_autograd(state, problem, batch, weight):
    """Return the gradient and the value with a graph of all gradients, with a constant mean as in DomainBed."""
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in state.params.items()}
    model = problem.model(leaves, state)
    risks = [model.losses(Batch(batch.x[k : k + 1], batch.y[k : k + 1])).mean() for k in range(K)]
    gradients = [torch.autograd.grad(risk, list(leaves.values()), create_graph=True) for risk in risks]
    means = [(sum(parts) / K).detach() for parts in zip(*gradients, strict=True)]
    penalty = sum(((g - m) ** 2).sum() for own in gradients for g, m in zip(own, means, strict=True))
    value = sum(risks) / K + weight * penalty
    slopes = torch.autograd.grad(value, list(leaves.values()))
    return dict(zip(leaves, slopes, strict=True)), value.detach(), penalty.detach()


def test_gradient_equals_autograd_through_the_gradients_of_the_domains():
    iga = IGA(penalty=0.7)
    state, problem = toy(iga)
    (batch,) = batches()
    expected, value, penalty = by_autograd(state, problem, batch, 0.7)
    found, loss = iga.gradient(state, batch, problem)
    assert_close(found, expected)
    torch.testing.assert_close(loss.value, value)
    torch.testing.assert_close(loss.metrics["penalty"], penalty)


def test_equal_domains_have_no_penalty():
    (batch,) = batches()
    same = Batch(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    iga = IGA(penalty=1e3)
    state, problem = toy(iga)
    found, loss = iga.gradient(state, same, problem)
    expected, _ = ERM().gradient(state, same, problem)
    assert loss.metrics["penalty"] < 1e-28
    assert_close(found, expected)


def test_weight_zero_or_one_domain_gives_erm():
    assert_close(steps(IGA(penalty=0.0), 4).params, steps(ERM(), 4).params)
    assert_close(steps(IGA(), 4, domains=1).params, steps(ERM(), 4, domains=1).params)


def test_known_value_of_two_opposite_gradients():
    """Risks whose gradients are ±g with respect to the only weight have the penalty 2 g²."""
    iga = IGA()
    state, problem = toy(iga, domains=2)
    params = {name: torch.zeros_like(leaf) for name, leaf in state.params.items()}
    y = torch.tensor([[0, 0], [1, 1]])
    _, loss = iga.gradient(state._replace(params=params), Batch(batches(domains=2, size=2)[0].x, y), problem)
    # With zero weights, only the bias of the head has a gradient: softmax − y. The deviations are (∓1/2, ±1/2, 0, 0).
    torch.testing.assert_close(loss.metrics["penalty"].item(), 1.0)


def test_training_decreases_the_variance_of_the_gradients():
    ends = []
    for penalty in (0.0, 100.0):
        method = IGA(penalty=penalty)
        state, problem = toy(method, lr=0.01)
        for _ in range(50):
            state, metrics = method.step(state, batches(), problem)
        ends.append(metrics["penalty"])
    assert ends[1] < ends[0] / 2


def test_both_passes_have_the_same_dropout_mask():
    """The gradient is that of the value, by finite differences."""

    class WithDropout(IGA):
        def build(self, features, width, num_classes, num_domains):
            return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))

    method = WithDropout(penalty=0.3)
    state, problem = toy(method)
    (batch,) = batches()
    found, _ = method.gradient(state, batch, problem)
    tiny = 1e-6
    for name in ("head.weight", "features.0.0.weight"):
        values = []
        for sign in (1, -1):
            moved = state.params[name].clone()
            moved[0, 0] += sign * tiny
            values.append(method.gradient(state._replace(params=state.params | {name: moved}), batch, problem)[1].value)
        torch.testing.assert_close(found[name][0, 0], (values[0] - values[1]) / (2 * tiny), rtol=1e-5, atol=1e-8)
