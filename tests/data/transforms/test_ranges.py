"""Pixels out of inputs, and back."""

import pytest
import torch

from pogm.data.transforms.photographs import Photographs
from pogm.data.transforms.pixels import Pixels
from pogm.data.transforms.ranges import is_large, to_inputs, to_pixels

BYTES = torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_photographs_go_back_to_pixels_and_return():
    inputs = Photographs((3, 96, 96)).plain(BYTES, torch.float64)
    torch.testing.assert_close(to_pixels(inputs), BYTES.double() / 255)
    torch.testing.assert_close(to_inputs(to_pixels(inputs)), inputs)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 28, 28), (3, 64, 64), (1, 224, 224)])
def test_small_images_are_pixels_already(shape):
    inputs = Pixels(shape).plain(torch.full((2, *shape), 51, dtype=torch.uint8), torch.float64)
    assert not is_large(inputs)
    assert to_pixels(inputs) is inputs
    assert to_inputs(inputs) is inputs
