"""Architectures."""

import pytest
import torch

from pogm.core.errors import UsageError
from pogm.networks import all_networks, build_features


@pytest.mark.parametrize(("channels", "parameters"), [(1, 370560), (2, 371136)])
def test_the_mnist_cnn_has_the_parameters_of_the_protocol(channels, parameters):
    features, width = build_features("mnist_cnn", (channels, 28, 28))
    assert sum(leaf.numel() for leaf in features.parameters()) == parameters
    assert width == 128


def test_its_blocks_have_the_shapes_of_the_protocol():
    features, _ = build_features("mnist_cnn", (1, 28, 28))
    x, shapes = torch.zeros(2, 1, 28, 28), {}
    for name, block in features.named_children():
        x = block(x)
        shapes[name] = tuple(x.shape[1:])
    assert shapes["block1"] == (64, 28, 28)
    assert shapes["block2"] == shapes["block3"] == shapes["block4"] == (128, 14, 14)


def test_its_blocks_are_convolution_then_relu_then_norm():
    features, _ = build_features("mnist_cnn", (1, 28, 28))
    kinds = [type(layer).__name__ for layer in features.get_submodule("block2")]
    assert kinds == ["Conv2d", "ReLU", "GroupNorm"]


@pytest.mark.parametrize("name", all_networks())
def test_a_network_has_as_many_outputs_as_it_says(name):
    features, width = build_features(name, (2, 8, 8))
    assert features(torch.zeros(3, 2, 8, 8)).shape == (3, width)


def test_an_unknown_network_is_refused():
    with pytest.raises(UsageError, match="mnist_cnn"):
        build_features("mnist_cn", (1, 28, 28))
