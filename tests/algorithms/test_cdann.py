"""CDANN."""

import pytest
import torch
from support import WIDTH, C, K, batches, toy, trial
from torch import nn

from pogm import Mixup
from pogm._system.errors import UsageError
from pogm.algorithms.cdann import CDANN
from pogm.core.batch import Batch
from pogm.engine.session import Engine, Session


def test_all_classes_have_the_same_weight():
    """Classes 0, 1, 2, 3 have 2, 1, 0 and 1 samples; C' = 4 as in DomainBed."""
    losses = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    found = CDANN().reduce_losses(losses, torch.tensor([[0, 1], [3, 0]]))
    torch.testing.assert_close(found, torch.tensor(1 / 8 + 10 / 4 + 100 / 4 + 1000 / 8))


def test_classes_above_the_largest_present_are_ignored():
    losses = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(CDANN().reduce_losses(losses, torch.tensor([[0, 1]])), torch.tensor(1.5))
    torch.testing.assert_close(CDANN().reduce_losses(losses, torch.tensor([[1, 1]])), torch.tensor(0.75))


def test_embedding_is_initialised_with_standard_normal_numbers():
    torch.manual_seed(0)
    weight = CDANN().build(nn.Identity(), 300, 200, K).embedding.weight
    assert abs(weight.mean()) < 0.01
    assert abs(weight.std() - 1) < 0.01


def test_discriminator_input_is_features_plus_class_embedding():
    state, problem = toy(CDANN())
    z, y = torch.randn(K, 2, WIDTH, dtype=torch.float64), torch.randint(C, (K, 2))
    u = CDANN().discriminator_input(problem.model(state.params, state), z, y)
    for k in range(K):
        for b in range(2):
            torch.testing.assert_close(u[k, b], z[k, b] + state.params["embedding.weight"][:, y[k, b]])


def test_embedding_is_trained_with_the_discriminator():
    """It is updated with the discriminator, and only for classes in the minibatch."""
    for rates, moves in (({"lr_g": 1.0, "lr_d": 1e-12}, False), ({"lr_g": 1e-12, "lr_d": 1.0}, True)):
        cdann = CDANN(**rates)
        state, problem = toy(cdann)
        made = [Batch(x, y.clamp(max=C - 2)) for x, y in batches(2)]
        after, _ = cdann.step(state, made, problem)
        change = (after.params["embedding.weight"] - state.params["embedding.weight"]).abs().amax(0)
        assert (change[:-1] > 0.1).all() == moves
        assert change[-1] == 0


def test_labels_that_are_probabilities_raise():
    mixed = trial(CDANN(), modifiers=(Mixup(),))
    with pytest.raises(UsageError, match="Mixup"):
        Session([mixed.task(None)], Engine()).step()
