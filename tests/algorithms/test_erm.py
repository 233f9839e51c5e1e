"""ERM."""

import torch
import torch.nn.functional as F
from support import C, assert_close, batches, toy

from pogm import ERM, Batch
from pogm.core.losses import probabilities


def test_step_is_one_adam_step_on_the_pooled_batch():
    state, problem = toy(ERM(), lr=0.05, weight_decay=0.1)
    (batch,) = batches()
    after, metrics = ERM().step(state, [batch], problem)

    leaves = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.05, weight_decay=0.1)
    logits = problem.model(leaves, state)(batch.x.flatten(0, 1))
    loss = F.cross_entropy(logits, batch.y.flatten())
    loss.backward()
    optimizer.step()
    torch.testing.assert_close(metrics["loss"], loss.detach())
    assert_close(after.params, {name: leaf.detach() for name, leaf in leaves.items()})


def test_labels_can_be_probabilities():
    state, problem = toy(ERM())
    (batch,) = batches()
    soft = Batch(batch.x, probabilities(batch.y, C).double())
    assert_close(ERM().step(state, [batch], problem)[0].params, ERM().step(state, [soft], problem)[0].params)
