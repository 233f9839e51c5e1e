"""The classifier of three layers."""

import pytest
import torch
from support import trial
from torch import nn

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.core.hyperparameters import changed
from pogm.models.classifier import nonlinear


def test_it_is_domainbeds_three_layers_with_the_inputs_and_outputs_of_one():
    layers = nonlinear(nn.Linear(128, 7))
    assert [tuple(layer.weight.shape) for layer in layers if isinstance(layer, nn.Linear)] == [
        (64, 128),
        (32, 64),
        (7, 32),
    ]
    assert layers(torch.zeros(2, 128)).shape == (2, 7)
    assert sum(isinstance(layer, nn.ReLU) for layer in layers) == 2


def test_a_head_that_is_not_one_layer_is_refused():
    with pytest.raises(UsageError, match="linear classifier for nonlinear_classifier; found Sequential"):
        nonlinear(nn.Sequential())


def test_a_trial_may_ask_for_it():
    run = trial(ERM())
    run = trial(ERM(), training=changed(run.training, {"nonlinear_classifier": True}))
    assert isinstance(run.task(None).build_network().head, nn.Sequential)
