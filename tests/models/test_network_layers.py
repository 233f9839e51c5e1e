"""Test frozen and live batch norm, the nonlinear classifier, the im2col convolution and the fused block."""

import copy
import subprocess
import sys
from pathlib import Path

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
from pogm.models.layers import ConvBlock, Im2colConv2d, build_nonlinear_classifier, freeze_batch_norm

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
    convolved, multiplied = layer(x), layer.convolve_patches(x, layer.weight, layer.bias)
    torch.testing.assert_close(multiplied, convolved, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(convolved)
    gradients = [torch.autograd.grad((y * weights).sum(), (layer.weight, layer.bias)) for y in (convolved, multiplied)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_im2col_output_is_channels_last():
    layer = Im2colConv2d(2, 8, 3, padding=1)
    out = layer.convolve_patches(torch.randn(4, 2, 6, 6), layer.weight, None)
    assert out.is_contiguous(memory_format=torch.channels_last)


def conv_block(channels: int, groups: int) -> ConvBlock:
    block = ConvBlock(Im2colConv2d(2, channels, 3, padding=1), nn.GroupNorm(groups, channels))
    nn.init.normal_(block[2].weight)
    nn.init.normal_(block[2].bias)
    return block


def test_a_block_that_the_kernel_does_not_support_is_computed_without_it():
    block, x = conv_block(12, 4), torch.randn(3, 2, 5, 4)
    torch.testing.assert_close(block.fused(x), block(x))


COMPARE_KERNELS = """
import torch
from torch.nn.functional import group_norm
from pogm.core.relu_group_norm import relu_group_norm
from test_network_layers import conv_block

torch.manual_seed(0)
for count, channels, groups, height, width in ((3, 16, 8, 5, 4), (300, 4, 2, 1, 3), (2, 128, 8, 7, 7)):
    images = torch.randn(count, channels, height, width) + 3
    direction = torch.randn_like(images)
    given = images, *torch.randn(3, channels)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        found, expected = (
            [part.detach().to(kind).requires_grad_() for part, kind in zip(given, kinds)]
            for kinds in ((dtype, *[torch.float32] * 3), [torch.float64] * 4)
        )
        out = relu_group_norm(*found, groups, 1e-5)
        assert out.dtype == dtype and out.is_contiguous(memory_format=torch.channels_last)
        x, bias, scale, shift = expected
        usual = group_norm((x.to(dtype).double() + bias[:, None, None]).relu(), groups, scale, shift, 1e-5)
        for one, other in zip(
            (out, *torch.autograd.grad(out, found, direction.to(dtype))),
            (usual, *torch.autograd.grad(usual, expected, direction.to(dtype).double())),
        ):
            assert (one - other).norm() < tolerance * other.norm()

level = torch.full((1, 4, 7, 7), 1000.0)
level[0, 0, 0, 0] += 1e-2  # the variance is 1e-13 of the squared mean
ones = torch.ones(4)
out = relu_group_norm(level, 0 * ones, ones, 0 * ones, 2, 1e-12)
torch.testing.assert_close(out, group_norm(level.double(), 2, eps=1e-12).float(), rtol=1e-4, atol=1e-4)
level[0, 3, 1, 1] = torch.nan
assert relu_group_norm(level, 0 * ones, ones, 0 * ones, 2, 1e-5)[0, 2:].isnan().all()

block, x = conv_block(32, 8), torch.randn(3, 2, 7, 7)
torch.testing.assert_close(block.fused(x), block(x))
compiled = torch.compile(block.fused, backend="aot_eager", fullgraph=True)
gradients = [torch.autograd.grad(run(x).square().sum(), block.parameters()) for run in (compiled, block)]
torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
"""


def test_interpreted_kernels_equal_relu_and_group_norm(monkeypatch):
    reason = "needs Triton 3.7: the interpreter of 3.6 does not accept numbers in loops with NumPy 2.4"
    pytest.importorskip("triton", "3.7", reason=reason)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when Triton is imported, so a new process is needed
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parent.parent}")
    done = subprocess.run([sys.executable, "-c", COMPARE_KERNELS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
