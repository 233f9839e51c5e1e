"""Test the small convolutional network."""

import pytest
import torch
from support import trial

from pogm import ERM
from pogm.data.datasets import dataset_class
from pogm.engine.session import Engine, Session
from pogm.models import build_features
from pogm.modifiers import all_modifiers


def test_small_cnn_block_shapes():
    features, width = build_features("small_cnn", (2, 8, 8))
    x, shapes = torch.zeros(3, 2, 8, 8), {}
    for name, block in features.named_children():
        x = block(x)
        shapes[name] = tuple(x.shape[1:])
    assert shapes == {"block1": (16, 4, 4), "block2": (32, 2, 2), "block3": (64, 1, 1), "flatten": (64,)}
    assert (features.blocks, width) == (("block1", "block2", "block3"), 64)


@pytest.mark.parametrize("size", [(8, 8), (9, 17), (28, 28), (1, 1)])
def test_small_cnn_accepts_any_image_size(size):
    features, width = build_features("small_cnn", (1, *size))
    assert features(torch.zeros(2, 1, *size)).shape == (2, width)


def accuracy_after(steps, algorithm, *modifiers):
    data = dataset_class("RotatedDigits")
    known = data.training.__class__(lr=5e-3, network="small_cnn")
    session = Session([trial(algorithm, training=known, modifiers=modifiers).task(None)], Engine(device="cpu"))
    for _ in range(steps):
        session.step()
    inside = session.accuracies()[0][2::2]  # accuracies of the training domains
    return sum(inside) / len(inside)


def test_small_cnn_learns_digits_in_sixty_steps():
    assert accuracy_after(60, ERM()) > 0.85


@pytest.mark.parametrize("name", ["MixStyle", "ITTA"])
def test_modifiers_on_feature_maps_work_with_small_cnn(name):
    assert accuracy_after(12, ERM(), all_modifiers()[name]()) > 0.3
