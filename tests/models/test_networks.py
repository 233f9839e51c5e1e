"""Test the networks and their registry."""

import pkgutil
import sys

import pytest
import torch
from torch import nn

from pogm import models
from pogm._system.errors import UsageError
from pogm.models import AXES, all_networks, build_features, resnet


@pytest.mark.parametrize(("channels", "parameters"), [(1, 370560), (2, 371136)])
def test_mnist_cnn_has_protocol_parameter_count(channels, parameters):
    features, width = build_features("mnist_cnn", (channels, 28, 28))
    assert sum(leaf.numel() for leaf in features.parameters()) == parameters
    assert width == 128


def test_mnist_cnn_blocks_have_protocol_shapes():
    features, _ = build_features("mnist_cnn", (1, 28, 28))
    x, shapes = torch.zeros(2, 1, 28, 28), {}
    for name, block in features.named_children():
        x = block(x)
        shapes[name] = tuple(x.shape[1:])
    assert shapes["block1"] == (64, 28, 28)
    assert shapes["block2"] == shapes["block3"] == shapes["block4"] == (128, 14, 14)


def test_mnist_cnn_blocks_are_convolution_relu_norm():
    features, _ = build_features("mnist_cnn", (1, 28, 28))
    layers = features.get_submodule("block2")
    kinds = (nn.Conv2d, nn.ReLU, nn.GroupNorm)
    assert all(isinstance(layer, kind) for layer, kind in zip(layers, kinds, strict=True))


@pytest.mark.parametrize("name", all_networks())
def test_network_width_equals_number_of_outputs(name):
    shape = (2, 8, 8)[: AXES.get(name, (3,))[-1]]
    features, width = build_features(name, shape)
    assert features(torch.zeros(3, *shape)).shape == (3, width)


def test_cnn1d_does_not_depend_on_the_position_in_time():
    """A pattern far from both ends gives the same features at any multiple of the stride of all blocks, 8."""
    torch.manual_seed(0)
    features, _ = build_features("cnn1d", (2, 256))
    pattern = torch.randn(2, 16)
    first, second = torch.zeros(2, 2, 256)
    first[:, 96:112], second[:, 136:152] = pattern, pattern
    torch.testing.assert_close(*(features(x[None]) for x in (first, second)))


@pytest.mark.parametrize(("name", "shape"), [("cnn1d", (5,)), ("resnet18", (3, 8)), ("timm/resnet10t", (7,))])
def test_network_for_other_inputs_is_refused(name, shape):
    listed = ", ".join(map(str, shape))
    with pytest.raises(UsageError, match=rf"inputs of shape \[{listed}\]; found {name}.*--set network="):
        build_features(name, shape)


@pytest.mark.parametrize(
    ("name", "parameters", "outputs"),
    [
        ("resnet18", 11176512, 512),
        ("resnet50", 23508032, 2048),
        ("resnet50_v1", 23508032, 2048),
        ("mobilenet_v2", 2223872, 1280),
    ],
)
def test_image_networks_have_protocol_parameter_counts(name, parameters, outputs):
    features, width = build_features(name, (3, 224, 224))
    assert sum(leaf.numel() for leaf in features.parameters()) == parameters
    assert width == outputs


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("resnet18", [64, 128, 256, 512]),
        ("resnet50", [256, 512, 1024, 2048]),
        ("resnet50_v1", [256, 512, 1024, 2048]),
    ],
)
def test_resnet_stages_have_protocol_shapes(name, channels):
    """The stages are those of algorithms.md §0.4, for images of 64×64."""
    features, _ = build_features(name, (3, 64, 64))
    x, shapes = torch.zeros(1, 3, 64, 64), {}
    for child, stage in features.named_children():
        x = stage(x)
        shapes[child] = tuple(x.shape[1:])
    stages = {f"layer{i + 1}": (count, 16 >> i, 16 >> i) for i, count in enumerate(channels)}
    assert {child: shapes[child] for child in stages} == stages
    assert list(shapes)[-3:] == ["avgpool", "flatten", "dropout"]


@pytest.mark.parametrize(("name", "strides"), [("resnet50", (1, 2)), ("resnet50_v1", (2, 1))])
def test_resnet50_variants_have_different_strides(name, strides):
    features, _ = build_features(name, (3, 64, 64))
    for stage in ("layer2", "layer3", "layer4"):
        block = features.get_submodule(f"{stage}.0")
        assert (block.conv1.stride[0], block.conv2.stride[0]) == strides
    assert features.get_submodule("layer1.0").conv2.stride == (1, 1)


def test_networks_are_those_of_the_files_that_build_one():
    helpers = {"featurizer", "layers", "resnet", "timm_models", "weights"}
    files = {info.name for info in pkgutil.iter_modules(models.__path__)} - helpers
    assert all_networks() == sorted(files | resnet.NETWORKS.keys())
    assert {"mlp", "mnist_cnn", "mobilenet_v2", "resnet18", "resnet50", "resnet50_v1", "small_cnn"} <= {*all_networks()}


@pytest.fixture
def network_files(tmp_path, monkeypatch):
    """Two new files in the folder of the networks: one with a network of its name, one with two networks."""
    build = "from pogm.models.mlp import build as {}\n"
    (tmp_path / "new_network.py").write_text(build.format("build"))
    (tmp_path / "new_family.py").write_text(build.format("mlp") + "NETWORKS = {'small_new': mlp, 'large_new': mlp}\n")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    models._builders.cache_clear()
    yield
    models._builders.cache_clear()
    for name in ("new_network", "new_family"):
        sys.modules.pop(f"pogm.models.{name}", None)


@pytest.mark.usefixtures("network_files")
def test_new_network_needs_only_its_file():
    assert {"new_network", "small_new", "large_new"} <= set(all_networks())
    assert build_features("large_new", (1, 8, 8))[1] == 128


def test_unknown_network_is_refused():
    with pytest.raises(UsageError, match=r"timm/MODEL; found 'mnist_cn'. Did you mean 'mnist_cnn'"):
        build_features("mnist_cn", (1, 28, 28))
