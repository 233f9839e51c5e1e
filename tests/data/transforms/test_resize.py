"""Compare resizing and crops with torchvision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torchvision.transforms import functional

from pogm.data.transforms.resize import resize, resized_crop

HEIGHT, WIDTH = 40, 53
BOXES = torch.tensor([[0, 0, HEIGHT, WIDTH], [3, 7, 30, 41], [0, 50, 40, 3], [12, 20, 1, 1], [39, 0, 1, 53]])


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("size", [1, 7, 31, 40, 53, 96])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_resized_crop_equals_torchvision(size, dtype, tolerance):
    images = draw(len(BOXES), 3, HEIGHT, WIDTH, dtype=dtype)
    found = resized_crop(images, BOXES, size)
    for ours, image, box in zip(found, images, BOXES.tolist(), strict=True):
        theirs = functional.resized_crop(image, *box, [size, size], antialias=True)
        assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("size", [1, 16, 40, 64])
def test_resize_equals_torchvision(size):
    images = draw(2, 3, HEIGHT, WIDTH)
    assert_close(resize(images, size), functional.resize(images, [size, size], antialias=True), atol=1e-12, rtol=0)


def test_resize_equals_crop_of_whole_image():
    images = draw(2, 3, HEIGHT, WIDTH)
    assert_close(resize(images, 24), resized_crop(images, BOXES[:1].expand(2, 4), 24), atol=1e-14, rtol=0)


def test_resize_to_same_size_changes_nothing():
    images = draw(2, 3, 24, 24, dtype=torch.float32)
    assert torch.equal(resize(images, 24), images)


@pytest.mark.parametrize("size", [9, 64])
def test_only_selected_images_are_flipped(size):
    images = draw(len(BOXES), 3, HEIGHT, WIDTH)
    flip = torch.tensor([True, False, True, False, True])
    plain = resized_crop(images, BOXES, size)
    expected = torch.where(flip[:, None, None, None], plain.flip(-1), plain)
    assert_close(resized_crop(images, BOXES, size, flip), expected, atol=1e-12, rtol=0)


def test_edge_pixels_have_weight_of_their_inner_part():
    images = torch.tensor([10.0, 20.0, 90.0], dtype=torch.float64).reshape(1, 1, 1, 3)
    box = torch.tensor([[0, 0.25, 1, 1]], dtype=torch.float64)  # 3/4 of the first pixel and 1/4 of the second
    # The centre of the box is 0.25 and 0.75 from the centres of the pixels: the filter gives 3/4 and 1/4 ...
    box_right = torch.tensor([[0, 0.75, 1, 1]], dtype=torch.float64)  # ... and the other way round here
    assert_close(resized_crop(images, box, 1).item(), (10 * 0.75 * 0.75 + 20 * 0.25 * 0.25) / 0.625)
    assert_close(resized_crop(images, box_right, 1).item(), (10 * 0.25 * 0.25 + 20 * 0.75 * 0.75) / 0.625)


@settings(max_examples=50, deadline=None)
@given(
    start=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    share=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)),
    size=st.integers(1, 30),
    flip=st.booleans(),
)
def test_values_stay_within_range_of_the_box(start, share, size, flip):
    whole = torch.tensor([HEIGHT, WIDTH], dtype=torch.float64)
    corner = torch.tensor(start, dtype=torch.float64) * whole
    box = torch.cat([corner, torch.tensor(share, dtype=torch.float64) * (whole - corner)])
    rows = torch.arange(HEIGHT, dtype=torch.float64).reshape(1, -1, 1).expand(1, HEIGHT, WIDTH)
    columns = torch.arange(WIDTH, dtype=torch.float64).expand(1, HEIGHT, WIDTH)
    found = resized_crop(torch.cat([rows, columns]), box, size, torch.tensor(flip))
    for part, start, length in zip(found, box[:2], box[2:], strict=True):
        assert part.min() >= start.floor() - 1e-9
        assert part.max() <= (start + length).ceil() - 1 + 1e-9


def test_leading_axes_give_same_result():
    images, boxes = draw(2, 3, 1, 20, 20), 5 + 5 * draw(2, 3, 4)
    flat = resized_crop(images.flatten(0, 1), boxes.flatten(0, 1), 8)
    assert_close(resized_crop(images, boxes, 8).flatten(0, 1), flat, atol=1e-14, rtol=0)
