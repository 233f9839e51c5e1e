"""IDGM, Algorithm 2 of the paper of Fish."""

import itertools

import pytest
import torch
from support import K, assert_close, batches, steps, toy
from torch import nn

from pogm import ERM
from pogm.algorithms.idgm import IDGM
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.core.random_layers import Dropout


class WithDropout(IDGM):
    """IDGM on a network with dropout: all terms of a step must have the same masks."""

    def build(self, features, width, num_classes, num_domains):
        return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))


def by_autograd(state, problem, batch, gamma):
    """Return the loss with a graph of all gradients, for one backward pass through all of it."""
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in state.params.items()}
    keys = random.split(IDGM().random_key(state), K)  # one for each domain's dropout
    models = [problem.model(leaves, state._replace(key=key)) for key in keys]
    risks = [models[k].losses(Batch(batch.x[k : k + 1], batch.y[k : k + 1])).mean() for k in range(K)]
    gradients = [torch.autograd.grad(risk, list(leaves.values()), create_graph=True) for risk in risks]
    pairs = list(itertools.combinations(gradients, 2))
    product = sum((a * b).sum() for left, right in pairs for a, b in zip(left, right, strict=True)) / len(pairs)
    loss = torch.stack(risks).mean() - gamma * product
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, slopes, strict=True)), loss.detach(), product.detach()


@pytest.mark.parametrize("cls", [IDGM, WithDropout])
def test_gradient_equals_autograd_through_inner_products(cls):
    method = cls(gamma=0.7, warmup_anneal_iters=0)
    state, problem = toy(method)
    (batch,) = batches()
    expected, value, product = by_autograd(state, problem, batch, 0.7)
    found, loss = method.gradient(state, batch, problem)
    assert_close(found, expected)
    torch.testing.assert_close(loss.value, value)
    torch.testing.assert_close(loss.metrics["inner_product"], product)


def test_gamma_grows_linearly_and_then_stays_constant():
    method = IDGM(gamma=0.8, warmup_anneal_iters=4)
    state, problem = toy(method)
    (batch,) = batches()
    for step, gamma in ((0, 0.0), (1, 0.2), (3, 0.6), (4, 0.8), (9, 0.8)):
        expected, _, _ = by_autograd(state, problem, batch, gamma)
        found, _ = method.gradient(state._replace(step=torch.tensor(step)), batch, problem)
        assert_close(found, expected)


def test_gamma_zero_or_one_domain_gives_erm():
    assert_close(steps(IDGM(gamma=0.0), 4).params, steps(ERM(), 4).params)
    alone = IDGM(gamma=0.5, warmup_anneal_iters=0)
    assert_close(steps(alone, 4, domains=1).params, steps(ERM(), 4, domains=1).params)


def test_training_increases_the_inner_products_of_gradients():
    """On one minibatch, a larger gamma gives larger inner products."""
    ends = []
    for gamma in (0.0, 1.0):
        method = IDGM(gamma=gamma, warmup_anneal_iters=0)
        state, problem = toy(method, lr=0.01)
        for _ in range(20):
            state, metrics = method.step(state, batches(), problem)
        ends.append(metrics["inner_product"])
    assert ends[1] > ends[0]
