"""Compare crop boxes with torchvision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, ks_2samp
from torch.func import vmap
from torchvision.transforms import RandomResizedCrop

from pogm.core import random
from pogm.data.transforms.crop import AREA, RATIO, draw_crop_boxes

DRAWS = 3000
UNLIKELY = 1e-3  # p-value below which two samples have different distributions


def ours(height, width, count=DRAWS):
    return draw_crop_boxes(random.key(0), torch.tensor([height, width]).expand(count, 2))


def theirs(height, width, count=DRAWS):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        image = torch.empty(1, height, width)
        return torch.tensor([RandomResizedCrop.get_params(image, AREA, RATIO) for _ in range(count)]).double()


def measures(boxes):
    top, left, height, width = boxes.unbind(-1)
    return {"top": top, "left": left, "area": height * width, "ratio": width / height}


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**31), height=st.integers(1, 3000), width=st.integers(1, 3000))
def test_box_has_whole_pixels_inside_the_image(seed, height, width):
    box = draw_crop_boxes(random.key(seed), torch.tensor([height, width]))
    top, left, tall, wide = box.tolist()
    assert torch.equal(box, box.round())
    assert tall >= 1
    assert wide >= 1
    assert 0 <= top <= height - tall
    assert 0 <= left <= width - wide


@pytest.mark.parametrize("size", [(256, 256), (150, 200), (100, 150), (100, 180), (400, 230)])
def test_distribution_equals_torchvision(size):
    found, expected = measures(ours(*size)), measures(theirs(*size))
    for name in found:
        assert ks_2samp(found[name], expected[name]).pvalue > UNLIKELY, name


@pytest.mark.parametrize("size", [(6, 7), (5, 5), (3, 4)])
def test_box_frequencies_of_small_images_equal_torchvision(size):
    both = torch.cat([ours(*size), theirs(*size)])
    boxes, which = both.unique(dim=0, return_inverse=True)
    table = torch.stack([which[:DRAWS].bincount(minlength=len(boxes)), which[DRAWS:].bincount(minlength=len(boxes))])
    frequent = table.sum(0) >= 20
    assert frequent.sum() >= 3
    rest = table[:, ~frequent].sum(1, keepdim=True)
    table = torch.cat([table[:, frequent], rest], 1) if rest.sum() else table
    assert chi2_contingency(table.numpy()).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("size", "box"),
    [((20, 1000), (0, 486, 20, 27)), ((1000, 20), (486, 0, 27, 20)), ((100, 200), (0, 33, 100, 133))],
)
def test_extreme_aspect_ratio_gives_central_box(size, box):
    expected = torch.tensor(box, dtype=torch.float64).expand(100, 4)
    assert torch.equal(ours(*size, 100), expected)
    assert torch.equal(theirs(*size, 100), expected)


def test_fallback_of_square_image_is_rare():
    """If no attempt fits, the box of a square image is the whole image."""
    whole = torch.tensor([0, 0, 256, 256], dtype=torch.float64)
    assert (ours(256, 256) == whole).all(-1).double().mean() < 0.01


def test_each_image_uses_its_own_size_and_random_numbers():
    sizes = torch.tensor([[300, 200], [40, 50], [300, 200], [20, 1000]])
    together = draw_crop_boxes(random.key(3), sizes)
    assert not torch.equal(together[0], together[2])
    assert (together[:, :2] + together[:, 2:] <= sizes).all()
    assert together[3].tolist() == [0, 486, 20, 27]
    assert torch.equal(
        draw_crop_boxes(random.key(3), sizes[:2]), together[:2]
    )  # independent of later images in the batch


def test_leading_axes_and_vmap_give_same_result():
    sizes = torch.tensor([[300, 200], [40, 50], [30, 200], [20, 1000], [7, 9], [256, 256]])
    key = random.key(4)
    assert torch.equal(draw_crop_boxes(key, sizes.reshape(2, 3, 2)).reshape(6, 4), draw_crop_boxes(key, sizes))
    keys = random.split(key, 3)
    pairs = sizes.reshape(3, 2, 2)
    one_by_one = torch.stack([draw_crop_boxes(*each) for each in zip(keys, pairs, strict=True)])
    assert torch.equal(vmap(draw_crop_boxes)(keys, pairs), one_by_one)
