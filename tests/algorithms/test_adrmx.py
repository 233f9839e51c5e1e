"""ADRMX."""

import copy
import math

import pytest
import torch
from support import B, C, K, assert_close, batches, toy
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import Learner
from pogm._system.errors import UsageError
from pogm.algorithms.adrmx import ADRMX, contrastive_loss
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.losses import probabilities

DOMAINS = torch.arange(K).repeat_interleave(B)


def plain_contrast(u, y):
    """Return the contrastive loss, sample by sample."""
    total, used = 0.0, 0
    for i in range(len(u)):
        weights = [0.5 * torch.exp(torch.cosine_similarity(u[i], u[j], dim=0) / 0.07) for j in range(len(u))]
        everything = sum(weights[j] for j in range(len(u)) if j != i) + 1e-5
        logs = [torch.log(weights[j] / everything + 1e-5) for j in range(len(u)) if j != i and y[j] == y[i]]
        if logs:
            total, used = total - sum(logs) / len(logs), used + 1
    return total / (used + 1)


def plain_loss(method, network, batch, key):
    """Return the loss of featurizers and heads, term by term."""
    x, y = batch.x.flatten(0, 1), batch.y.flatten()
    z, d = network.features(x), network.domain_features(x)
    remix = 0.0
    for first, second, valid in zip(*method.draw_pairs(y, DOMAINS, C, key), strict=True):
        if valid:
            remix += cross_entropy(network.head((z - d)[first] + d[second]), y[first]) / C
    return (
        cross_entropy(network.head(z), y)
        + cross_entropy(network.difference_head(z - d), y)
        + method.domain_weight * cross_entropy(network.domain_head(d), DOMAINS)
        + method.remix_weight * remix
        + method.contrast_weight * (plain_contrast(z, y) + plain_contrast(z - d, y))
        - method.adversary_weight * cross_entropy(network.discriminator(z - d), DOMAINS)
    )


@pytest.mark.parametrize("as_released", [False, True])
def test_two_steps_equal_a_plain_torch_implementation(as_released):
    weights = {"contrast_weight": 0.3, "domain_weight": 0.5, "adversary_weight": 0.7, "remix_weight": 1.1}
    method = ADRMX(**weights, lr_all=0.01, mlp_width=7, mlp_depth=3, as_released=as_released)
    state, problem = toy(method)
    network = copy.deepcopy(problem.network).requires_grad_()
    discriminator = list(network.discriminator.parameters())
    rest = [leaf for name, leaf in network.named_parameters() if not name.startswith("discriminator.")]
    movers = [torch.optim.Adam(leaves, 0.01, (0.5, 0.9)) for leaves in (discriminator, rest)]
    made = batches(6)
    for half in (made[:3], made[3:]):
        key = method.random_key(state, 3)
        state, metrics = method.step(state, half, problem)
        losses = []
        for turn, batch in zip((0, 1, 0), half, strict=True):  # discriminator, the rest, discriminator
            x = batch.x.flatten(0, 1)
            difference = network.features(x) - network.domain_features(x)
            loss = cross_entropy(network.discriminator(difference), DOMAINS)
            loss = plain_loss(method, network, batch, key) if turn else loss
            network.zero_grad()
            loss.backward()
            movers[turn].step()
            losses.append(loss.detach())
        torch.testing.assert_close(metrics["gen_loss"], losses[1])
        torch.testing.assert_close(metrics["disc_loss"], (losses[0] + losses[2]) / 2)
    assert_close(state.params, {n: leaf.detach() for n, leaf in network.named_parameters()}, 1e-8)


def test_pairs_are_of_one_class_and_of_different_domains():
    y = batches()[0].y.flatten()
    y[DOMAINS > 0] = y[DOMAINS > 0].clamp(max=2)  # class 3 occurs in the first domain only
    y[0] = 3
    seen = set()
    for seed in range(50):
        first, second, valid = ADRMX().draw_pairs(y, DOMAINS, C, random.key(seed))
        assert valid.tolist() == [True, True, True, False]
        assert torch.equal(y[first][:3], torch.arange(3))
        assert torch.equal(y[second][:3], torch.arange(3))
        assert (DOMAINS[first] != DOMAINS[second])[:3].all()
        seen |= set(first[:3].tolist())
    assert seen == {j for j in range(len(y)) if y[j] < 3}, "every sample can be drawn"


def test_released_pairs_are_among_the_first_samples():
    y = batches()[0].y.flatten()
    first, second, valid = ADRMX(as_released=True).draw_pairs(y, DOMAINS, C, random.key(0))
    counts = torch.bincount(y, minlength=C)
    assert (first < counts).all()
    assert (second < counts).all()
    assert (first != second).all()
    assert torch.equal(valid, counts > 1)


def test_contrastive_loss_has_a_known_value():
    """Two pairs of opposite directions: each sample has one positive with cosine 1 and two negatives with −1."""
    u = torch.tensor([[1.0], [2.0], [-1.0], [-3.0]], dtype=torch.float64)
    near, far = (0.5 * math.exp(cosine / 0.07) for cosine in (1, -1))
    known = -4 / 5 * math.log(near / (near + 2 * far + 1e-5) + 1e-5)
    assert contrastive_loss(u, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(known, abs=1e-12)


def test_featurizers_start_with_different_random_weights():
    state, _ = toy(ADRMX())
    assert not torch.equal(state.params["features.0.weight"], state.params["domain_features.0.weight"])


def test_probabilities_as_labels_raise():
    state, problem = toy(ADRMX())
    soft = [Batch(batch.x, probabilities(batch.y, C)) for batch in batches(3)]
    with pytest.raises(UsageError, match="labels that are classes"):
        ADRMX().step(state, soft, problem)


def test_module_of_a_learner_raises():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), ADRMX(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match="networks of its own"):
        learner.step(list(zip(x, y, strict=True)))
