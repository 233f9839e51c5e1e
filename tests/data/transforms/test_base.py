"""Test the transform of small images."""

import pytest
import torch

from pogm.core import random
from pogm.data.transforms.base import Pixels

BYTES = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bytes_are_scaled_to_unit_interval_in_dtype(dtype):
    found = Pixels((3, 1, 1)).to_inputs(BYTES, dtype)
    torch.testing.assert_close(found, torch.tensor([0, 0.2, 1], dtype=dtype).reshape(1, 3, 1, 1))


def test_training_inputs_equal_evaluation_inputs():
    transform = Pixels((3, 1, 1))
    sizes = torch.ones(1, 2, dtype=torch.int64)
    assert torch.equal(
        transform.to_augmented_inputs(BYTES, sizes, random.key(0), torch.float32),
        transform.to_inputs(BYTES, torch.float32),
    )
