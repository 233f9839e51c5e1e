"""DANN."""

import math

import torch
from support import C, K, batches, toy

from pogm.algorithms.dann import DANN
from pogm.core.batch import Batch
from pogm.core.losses import probabilities


def test_constant_discriminator_has_loss_log_k():
    state, problem = toy(DANN())
    blind = {n: torch.zeros_like(leaf) if n.startswith("discriminator.") else leaf for n, leaf in state.params.items()}
    (batch,) = batches()
    value = DANN().discriminator_loss(batch, problem.model(blind, state)).value
    torch.testing.assert_close(value.item(), math.log(K))


def test_discriminator_loss_does_not_depend_on_labels():
    state, problem = toy(DANN())
    (batch,) = batches()
    model = problem.model(state.params, state)
    other = Batch(batch.x, (batch.y + 1) % C)
    assert DANN().discriminator_loss(batch, model).value == DANN().discriminator_loss(other, model).value


def test_labels_can_be_probabilities():
    state, problem = toy(DANN())
    made = batches(2)
    soft = [Batch(x, probabilities(y, C).double()) for x, y in made]
    expected, found = (DANN().step(state, some, problem)[1] for some in (made, soft))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_equal_domains_cannot_be_separated():
    """With equal samples in all domains, the best discriminator is constant."""
    dann = DANN(lr_d=0.05, lr_g=1e-12)
    state, problem = toy(dann)
    for seed in range(30):
        made = [Batch(x[:1].expand_as(x), y[:1].expand_as(y)) for x, y in batches(2, seed=seed)]
        state, metrics = dann.step(state, made, problem)
    assert metrics["disc_loss"] > 0.9 * math.log(K)
    for seed in range(30):
        state, metrics = dann.step(state, batches(2, seed=seed), problem)
    assert metrics["disc_loss"] < 0.75 * math.log(K)
