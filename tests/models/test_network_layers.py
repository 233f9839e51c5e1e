"""Test frozen and live batch norm, the nonlinear classifier and the im2col convolution."""

import copy

import pytest
import torch
from support import assert_close, trial
from torch import nn

from pogm._system.errors import UsageError
from pogm.algorithms.erm import ERM
from pogm.algorithms.pogm import POGM
from pogm.core import trees
from pogm.core.hyperparameters import replace_fields
from pogm.core.model import Network, evaluation_mode
from pogm.core.problem import live_buffers
from pogm.data.datasets.base import Training
from pogm.engine.session import Engine, Session
from pogm.models import build_features
from pogm.models.layers import ChannelSumGroupNorm, Im2colConv2d, build_nonlinear_classifier, freeze_batch_norm

SMALL = ["timm/test_resnet", "timm/test_efficientnet"]  # in the second, batch norm and activation are one layer
both = pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2)], ids=["ERM", "POGM"])


def norms(network: torch.nn.Module) -> list[torch.nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)]


def session(algorithm, *, freeze_bn: bool, **options) -> Session:
    training = Training(network="timm/test_efficientnet", freeze_bn=freeze_bn, batch_size=3, **options)
    return Session([trial(algorithm, training=training, precision="fp64").task(None)], Engine())


@pytest.mark.parametrize("name", ["resnet18", *SMALL])
def test_frozen_layers_stay_in_evaluation_mode(name):
    features, width = build_features(name, (3, 32, 32))
    network = Network(features, torch.nn.Linear(width, 2))
    assert norms(network)
    for change in (network.train, network.eval, lambda: network.train(True), features.train):
        change()
        assert not any(norm.training for norm in norms(network))
    network.train()
    assert network.head.training
    assert live_buffers(network) == frozenset()
    with evaluation_mode(network):
        pass
    assert network.head.training
    assert not any(norm.training for norm in norms(network))


def test_frozen_layer_stays_frozen_in_copy_and_other_network():
    features, _ = build_features("timm/test_resnet", (3, 32, 32))
    parts = torch.nn.Sequential(*copy.deepcopy(features).modules()).train()
    assert not any(norm.training for norm in norms(parts))


def test_freezing_twice_changes_nothing():
    features, _ = build_features("timm/test_resnet", (3, 32, 32))
    kinds = [type(norm) for norm in norms(features)]
    freeze_batch_norm(features)
    assert [type(norm) for norm in norms(features)] == kinds


def test_frozen_batch_norm_equals_evaluation_mode():
    torch.manual_seed(0)
    frozen, _ = build_features("timm/test_efficientnet", (3, 32, 32))
    live, _ = build_features("timm/test_efficientnet", (3, 32, 32), freeze_bn=False)
    live.load_state_dict(frozen.state_dict())
    x = torch.randn(4, 3, 32, 32)
    assert_close(frozen.train()(x), live.eval()(x), 0.0)
    assert not torch.allclose(live.train()(x), frozen(x))


@both
def test_frozen_statistics_stay_while_scale_and_shift_train(algorithm):
    training = session(algorithm, freeze_bn=True)
    before = trees.map_leaves(torch.clone, training.train_state.state)
    for _ in range(2):
        training.step()
    training.accuracies()
    after = training.train_state.state
    assert training.config.problem.live == frozenset()
    assert_close(after.buffers, before.buffers, 0.0)
    scale = "features.model.bn2.weight"
    assert not torch.equal(after.params[scale], before.params[scale])
    shift = "features.model.bn2.bias"
    assert not torch.equal(after.params[shift], before.params[shift])


@both
def test_live_statistics_change_with_data(algorithm):
    training = session(algorithm, freeze_bn=False)
    before = trees.map_leaves(torch.clone, training.train_state.state.buffers)
    training.step()
    training.accuracies()
    after = training.train_state.state.buffers
    live = training.config.problem.live
    assert live == {name for name in before if "bn" in name}
    assert all(not torch.equal(after[name], before[name]) for name in live)
    minibatches = algorithm.minibatches
    assert {after[name].item() for name in live if name.endswith("num_batches_tracked")} == {minibatches}


def test_live_statistics_equal_ordinary_module():
    training = session(ERM(), freeze_bn=False)
    module = copy.deepcopy(training.network).train()
    module.load_state_dict(training.train_state.state.params | training.train_state.state.buffers, strict=False)
    seen = []
    training.network.features.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    training.step()
    with torch.no_grad():
        module(seen[0])
    live = {name: training.train_state.state.buffers[name] for name in training.config.problem.live}
    assert_close(live, {name: buffer for name, buffer in module.named_buffers() if name in live}, 1e-12)


def test_nonlinear_classifier_has_domainbed_layers():
    layers = build_nonlinear_classifier(nn.Linear(128, 7))
    assert [tuple(layer.weight.shape) for layer in layers if isinstance(layer, nn.Linear)] == [
        (64, 128),
        (32, 64),
        (7, 32),
    ]
    assert layers(torch.zeros(2, 128)).shape == (2, 7)
    assert sum(isinstance(layer, nn.ReLU) for layer in layers) == 2


def test_nonlinear_classifier_of_few_features_depends_on_them():
    layers = build_nonlinear_classifier(nn.Linear(2, 7))
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == [1, 1, 7]


def test_nonlinear_classifier_refuses_head_of_several_layers():
    with pytest.raises(UsageError, match="linear classifier for nonlinear_classifier; found Sequential"):
        build_nonlinear_classifier(nn.Sequential())


def test_trial_with_nonlinear_classifier():
    run = trial(ERM())
    run = trial(ERM(), training=replace_fields(run.training, {"nonlinear_classifier": True}))
    assert isinstance(run.task(None).build_network().head, nn.Sequential)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_im2col_outputs_and_gradients_equal_convolution(channels, stride):
    torch.manual_seed(0)
    layer = Im2colConv2d(channels, 8, 3, stride, padding=1).double()
    x = torch.randn(4, channels, 7, 9, dtype=torch.float64)
    convolved, multiplied = layer(x), layer.convolve_patches(x)
    torch.testing.assert_close(multiplied, convolved, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(convolved)
    gradients = [torch.autograd.grad((y * weights).sum(), (layer.weight, layer.bias)) for y in (convolved, multiplied)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_im2col_output_is_channels_last():
    out = Im2colConv2d(2, 8, 3, padding=1).convolve_patches(torch.randn(4, 2, 6, 6))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_group_norm_from_sums_of_channels_equals_the_usual_one():
    layer, usual = ChannelSumGroupNorm(4, 12).double(), nn.GroupNorm(4, 12).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    usual.load_state_dict(layer.state_dict())
    x = torch.randn(3, 12, 5, 4, dtype=torch.float64, requires_grad=True)
    out, expected = layer.normalise(3 * x + 2), usual(3 * x + 2)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    inputs = (x, layer.weight, layer.bias), (x, usual.weight, usual.bias)
    gradients = [torch.autograd.grad(y, some, direction) for y, some in zip((out, expected), inputs, strict=True)]
    torch.testing.assert_close(*gradients)


def test_group_norm_of_equal_inputs_is_its_bias():
    """Rounding may make a variance negative."""
    layer = ChannelSumGroupNorm(2, 4)
    nn.init.normal_(layer.bias)
    out = layer.normalise(torch.full((1, 4, 7, 7), 0.3))
    torch.testing.assert_close(out, layer.bias[None, :, None, None].expand_as(out), atol=1e-3, rtol=0)
