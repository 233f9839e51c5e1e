"""Compare colour jitter with torchvision."""

from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch.func import vmap
from torch.testing import assert_close
from torchvision.transforms import functional

from pogm.core import random
from pogm.data.transforms.color import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    apply_jitter,
    blend,
    draw_jitter,
    shift_hue,
    to_greyscale,
)

THEIRS = {
    BRIGHTNESS: functional.adjust_brightness,
    CONTRAST: functional.adjust_contrast,
    SATURATION: functional.adjust_saturation,
    HUE: functional.adjust_hue,
}
ORDERS = list(permutations(range(4)))


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def amounts(count, seed=1):
    """Return amounts of brightness, contrast, saturation and hue, in a larger range than jitter."""
    numbers = draw(count, 4, seed=seed)
    return torch.cat([2 * numbers[:, :3], numbers[:, 3:] - 0.5], 1)


def check_close(ours, theirs):
    assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [BRIGHTNESS, CONTRAST, SATURATION])
def test_blend_equals_torchvision(kind):
    images, factors = draw(16, 3, 9, 11), amounts(16)[:, kind]
    theirs = [THEIRS[kind](image, factor) for image, factor in zip(images, factors.tolist(), strict=True)]
    check_close(blend(images, torch.full((16,), kind), factors), torch.stack(theirs))


def test_hue_shift_equals_torchvision():
    images, shifts = draw(16, 3, 9, 11), amounts(16)[:, HUE]
    theirs = [THEIRS[HUE](image, shift) for image, shift in zip(images, shifts.tolist(), strict=True)]
    check_close(shift_hue(images, shifts), torch.stack(theirs))


def test_hue_shift_of_equal_channels_equals_torchvision():
    """Test all pixels with channels 0, 0.5 and 1, where the largest channel is not unique."""
    levels = torch.tensor([0.0, 0.5, 1.0])
    image = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 1, 27)
    for shift in (-0.5, -1 / 3, -0.1, 0.0, 1 / 6, 0.3, 0.5):
        check_close(shift_hue(image, torch.tensor([shift])), functional.adjust_hue(image, shift))


def test_hue_shift_by_one_third_rotates_channels():
    images = draw(2, 3, 5, 5, dtype=torch.float64)
    assert_close(
        shift_hue(images, torch.full((2,), 1 / 3, dtype=torch.float64)), images.roll(1, -3), atol=1e-12, rtol=0
    )


def test_greyscale_equals_torchvision_where_chosen():
    images = draw(3, 3, 9, 11)
    found = to_greyscale(images, torch.tensor([True, False, True]))
    check_close(found[::2], functional.rgb_to_grayscale(images[::2], num_output_channels=3))
    assert torch.equal(found[1], images[1])


@pytest.mark.parametrize("seed", range(3))
def test_every_order_equals_torchvision_functions_in_that_order(seed):
    images, settings = draw(24, 3, 9, 11, seed=seed), amounts(24, seed + 10)
    found = apply_jitter(images, settings, torch.tensor(ORDERS))
    for ours, image, setting, order in zip(found, images, settings.tolist(), ORDERS, strict=True):
        for kind in order:
            image = THEIRS[kind](image, setting[kind])
        check_close(ours, image)


def test_neutral_amounts_change_nothing():
    images = draw(24, 3, 9, 11)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(24, 4)
    assert_close(apply_jitter(images, neutral, torch.tensor(ORDERS)), images, atol=1e-6, rtol=0)
    assert torch.equal(blend(images, torch.arange(24) % 3, torch.ones(24)), images)


@pytest.fixture
def drawn():
    """Amounts and orders of 6000 images."""
    return draw_jitter(random.key(0), (6000,))


def test_amounts_are_uniform_and_independent(drawn):
    found = drawn[0]
    for kind, low in ((BRIGHTNESS, 0.7), (CONTRAST, 0.7), (SATURATION, 0.7), (HUE, -0.3)):
        assert kstest(found[:, kind], "uniform", (low, 0.6)).pvalue > 1e-3
    correlations = torch.corrcoef(found.T) - torch.eye(4)
    assert correlations.abs().max() < 0.05


def test_orders_are_uniform_and_independent_of_amounts(drawn):
    found, order = drawn
    codes = (order * torch.tensor([64, 16, 4, 1])).sum(-1)
    values, counts = codes.unique(return_counts=True)
    assert len(values) == 24
    assert chisquare(counts).pvalue > 1e-3
    assert torch.corrcoef(torch.stack([found[:, 0], order[:, 0].double()]))[0, 1].abs() < 0.05


def test_same_key_gives_same_jitter_in_any_shape():
    first, again, other = (torch.cat(draw_jitter(random.key(seed), (6,)), -1) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert ((first - other).abs().amax(-1) > 1e-2).all()
    assert torch.equal(torch.cat(draw_jitter(random.key(1), (2, 3)), -1).flatten(0, 1), first)
    keys = random.split(random.key(1), 2)
    mapped = vmap(lambda key: torch.cat(draw_jitter(key, (3,)), -1))(keys)
    assert torch.equal(mapped, torch.stack([torch.cat(draw_jitter(key, (3,)), -1) for key in keys]))


def test_leading_axes_and_vmap_give_same_result():
    images = draw(2, 3, 3, 6, 6, dtype=torch.float64)
    amounts, order = draw_jitter(random.key(1), (2, 3))
    flat = apply_jitter(images.flatten(0, 1), amounts.flatten(0, 1), order.flatten(0, 1))
    assert flat.dtype == torch.float64
    assert_close(apply_jitter(images, amounts, order).flatten(0, 1), flat, atol=1e-14, rtol=0)
    assert_close(vmap(apply_jitter)(images, amounts, order).flatten(0, 1), flat, atol=1e-14, rtol=0)
