"""TRM."""

import pytest
import torch
from support import C, K, assert_close, batches, steps, toy
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import ERM, Learner
from pogm._system.errors import UsageError
from pogm.algorithms.trm import TRM


def plain(method, state, problem, batch, terms=10):
    """Return the objective with its gradient, and the new classifiers and weights, by autograd and loops."""
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in state.params.items()}
    model = problem.model(leaves, state)
    z = [model.features(x) for x in batch.x]
    value = sum(cross_entropy(model.head(z[k]), batch.y[k]) for k in range(K)) / K
    alpha = state.memory["alpha"] / state.memory["alpha"].sum(1, keepdim=True)
    after, heads = alpha.clone(), []
    for q in range(K):
        w, b = (state.memory[name][q].clone().requires_grad_() for name in ("weight", "bias"))
        optimizer = torch.optim.SGD([w, b], 0.1)
        for _ in range(30):
            optimizer.zero_grad()
            cross_entropy(z[q].detach() @ w.T + b, batch.y[q]).backward()
            optimizer.step()
        heads.append((w.detach(), b.detach()))
        risks = {i: cross_entropy(z[i] @ w.T + b, batch.y[i]) for i in range(K)}
        swapped = sum(alpha[q, i] * risks[i] for i in range(K) if i != q)
        (own,) = torch.autograd.grad(risks[q], w, create_graph=True)
        vector = total = torch.autograd.grad(swapped, w, retain_graph=True)[0]
        for _ in range(terms):
            (product,) = torch.autograd.grad((own * vector).sum(), w, retain_graph=True)
            vector = vector - product
            total = total + vector
            if total.abs().max() > 10:
                break
        value = value + (swapped - method.penalty * (total * own).sum()) / K
        for i in range(K):
            if i != q:
                after[q, i] *= torch.exp(method.eta * alpha[q, i] * risks[i].detach())
    slopes = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
    return value.detach(), slopes, torch.stack([w for w, _ in heads]), after


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_gradient_and_memory_equal_autograd_with_loops(scale):
    """With large features, the Neumann series ends early."""
    method = TRM(penalty=0.3, penalty_anneal_iters=0, eta=0.5)
    state, problem = toy(method)
    state = state._replace(memory=state.memory | {"alpha": torch.rand(K, K).double() * (1 - torch.eye(K).double())})
    problem.network.features.append(Scale(scale))
    (batch,) = batches()
    value, slopes, heads, alpha = plain(method, state, problem, batch)
    found, loss = method.gradient(state, batch, problem)
    torch.testing.assert_close(loss.value, value)
    assert_close(found, slopes, 1e-8)
    torch.testing.assert_close(loss.memory["weight"], heads)
    torch.testing.assert_close(loss.memory["alpha"], alpha)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, z):
        return self.factor * z


def test_first_steps_and_one_domain_are_erm():
    method = TRM(penalty_anneal_iters=3)
    assert_close(steps(method, 3).params, steps(ERM(), 3).params)
    assert_close(steps(method, 3).memory, steps(method, 0).memory)
    assert not torch.allclose(steps(method, 4).params["features.0.weight"], steps(ERM(), 4).params["features.0.weight"])
    alone = TRM(penalty_anneal_iters=0)
    assert_close(steps(alone, 3, domains=1).params, steps(ERM(), 3, domains=1).params)


def test_classifier_of_a_module_must_be_linear():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, C), nn.ReLU())), TRM(), head="1")
    with pytest.raises(UsageError, match="a linear head"):
        learner.step([(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)) for _ in range(2)])
