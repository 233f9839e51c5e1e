"""Compare affine transforms with torchvision."""

import pytest
import torch
from torch.func import vmap
from torch.testing import assert_close
from torchvision.transforms import InterpolationMode, functional

from pogm.data.transforms.affine import affine_maps, shear_maps, warp

MODES = {True: InterpolationMode.NEAREST, False: InterpolationMode.BILINEAR}


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize(("angle", "x", "y"), [(0, 0, 0), (9, 0, 0), (-33.3, 2, 0), (10, -3, 4), (80, 0, 1)])
def test_rotation_and_translation_equal_torchvision(nearest, angle, x, y):
    images = draw(2, 3, 9, 12)
    maps = affine_maps(*(torch.full((2,), float(value)).double() for value in (angle, x, y)))
    theirs = functional.affine(images, angle, [x, y], 1.0, [0.0, 0.0], MODES[nearest])
    assert_close(warp(images, maps, nearest=nearest), theirs, atol=1e-5, rtol=0)  # torchvision's angles are float32


@pytest.mark.parametrize("shear", [(0.09, 0.0), (-0.3, 0.0), (0.0, 0.09), (0.0, -0.25)])
def test_shear_about_top_left_corner_equals_torchvision(shear):
    images = draw(2, 3, 9, 12)
    maps = shear_maps(*(torch.full((2,), value).double() for value in shear), 9, 12)
    degrees = torch.tensor(shear).atan().rad2deg().tolist()
    theirs = functional.affine(images, 0, [0, 0], 1.0, degrees, MODES[False], center=[0, 0])
    assert_close(warp(images, maps, nearest=False), theirs, atol=1e-4, rtol=0)


def test_rotation_by_90_degrees_is_exact_and_clockwise():
    images = draw(1, 1, 6, 6)
    maps = affine_maps(*torch.tensor([[90.0], [0.0], [0.0]]).double())
    assert_close(warp(images, maps, nearest=True), images.rot90(-1, (-2, -1)))


def test_translation_moves_right_and_down_and_fills_with_black():
    images = draw(1, 1, 4, 5)
    moved = warp(images, affine_maps(*torch.tensor([[0.0], [2.0], [1.0]]).double()), nearest=True)
    assert_close(moved[..., 1:, 2:], images[..., :-1, :-2])
    assert not moved[..., :1, :].any()
    assert not moved[..., :2].any()


def test_identity_map_changes_no_bit():
    images = draw(2, 3, 28, 224).float()
    assert torch.equal(warp(images, affine_maps(*torch.zeros(3, 2)), nearest=True), images)


def test_leading_axes_and_vmap_give_same_result():
    images, numbers = draw(2, 3, 1, 6, 6), draw(3, 2, 3, seed=1)
    maps = affine_maps(90 * numbers[0], numbers[1], numbers[2])
    flat = warp(images.flatten(0, 1), maps.flatten(0, 1), nearest=False)
    assert torch.equal(warp(images, maps, nearest=False).flatten(0, 1), flat)
    mapped = vmap(lambda images, maps: warp(images, maps, nearest=False))(images, maps)
    assert_close(mapped.flatten(0, 1), flat)
