"""Compare RandAugment with torchvision."""

import pytest
import torch
from scipy.stats import chisquare
from torch.func import vmap
from torch.testing import assert_close
from torchvision.transforms import InterpolationMode, RandAugment, autoaugment

from pogm.core import random
from pogm.data.transforms import randaugment as ours
from pogm.data.transforms.color import BRIGHTNESS, CONTRAST, SATURATION
from pogm.data.transforms.randaugment import apply_operation, randaugment

NAMES = {
    "Brightness": BRIGHTNESS,
    "Contrast": CONTRAST,
    "Color": SATURATION,
    "Sharpness": ours.SHARPNESS,
    "ShearX": ours.SHEAR_X,
    "ShearY": ours.SHEAR_Y,
    "TranslateX": ours.SHIFT_X,
    "TranslateY": ours.SHIFT_Y,
    "Rotate": ours.ROTATE,
    "Posterize": ours.POSTERIZE,
    "Solarize": ours.SOLARIZE,
    "AutoContrast": ours.AUTOCONTRAST,
    "Equalize": ours.EQUALIZE,
    "Identity": ours.IDENTITY,
}
HEIGHT, WIDTH = 37, 50


def pictures(count=3, seed=0):
    """Return byte images with structure, noise and an uneven histogram."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 3, 6, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(low, (HEIGHT, WIDTH), mode="bilinear")
    noise = torch.rand(count, 3, HEIGHT, WIDTH, generator=generator)
    return (10 + 200 * smooth.sqrt() + 30 * noise).byte()


def theirs(images, name, sign, magnitude):
    """Apply torchvision's operation, to floats where possible, because it rounds bytes more than once."""
    space, signed = RandAugment()._augmentation_space(31, (HEIGHT, WIDTH))[name]
    amount = float(space[magnitude]) if space.ndim else 0.0
    amount *= sign if signed else 1
    whole = name in ("Posterize", "Solarize", "Equalize")
    changed = [
        autoaugment._apply_op(image if whole else image.double() / 255, name, amount, InterpolationMode.NEAREST, None)
        for image in images
    ]
    return torch.stack(changed).double() / 255 if whole else torch.stack(changed)


def apply_to_bytes(images, name, sign, magnitude):
    """Apply our operation to byte images."""
    count = len(images)
    pixels = images.double() / 255
    return apply_operation(
        pixels, torch.full((count,), NAMES[name]), torch.full((count,), float(sign)).double(), magnitude
    )


def test_operations_equal_torchvision_list():
    assert NAMES.keys() == RandAugment()._augmentation_space(31, (HEIGHT, WIDTH)).keys()
    assert sorted(NAMES.values()) == list(range(ours.OPERATIONS))


@pytest.mark.parametrize("magnitude", [9, 17])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_operation_equals_torchvision(name, sign, magnitude):
    images = pictures()
    found, expected = apply_to_bytes(images, name, sign, magnitude), theirs(images, name, sign, magnitude)
    moving = name in ("ShearX", "ShearY", "Rotate")  # a position between two pixels may round to either
    assert ((found - expected).abs() > 1e-6).double().mean() <= 0.002 * moving
    changes = (expected - images / 255.0).abs() > 1e-3
    assert changes.double().mean() > 0.2 or name == "Identity", "otherwise the comparison is trivial"


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_image_of_one_colour_is_unchanged(name):
    images = torch.full((2, 3, HEIGHT, WIDTH), 77, dtype=torch.uint8)
    assert_close(theirs(images, name, 1, 9), images.double() / 255)
    assert_close(apply_to_bytes(images, name, 1, 9), images.double() / 255)


def test_magnitude_zero_changes_only_autocontrast_and_equalize():
    images = pictures(1).expand(ours.OPERATIONS, -1, -1, -1).double() / 255
    kinds = torch.arange(ours.OPERATIONS)
    found = apply_operation(images, kinds, torch.ones(ours.OPERATIONS).double(), 0)
    same = [k for k in range(ours.OPERATIONS) if torch.allclose(found[k], images[k])]
    assert [k for k in kinds.tolist() if k not in same] == [ours.AUTOCONTRAST, ours.EQUALIZE]


def test_each_image_gets_its_own_operation():
    images = pictures(1).expand(ours.OPERATIONS, -1, -1, -1).double() / 255
    together = apply_operation(images, torch.arange(ours.OPERATIONS), torch.ones(ours.OPERATIONS).double(), 9)
    for name, kind in NAMES.items():
        assert torch.equal(together[kind], apply_to_bytes(pictures(1), name, 1, 9)[0])


def test_operations_and_signs_are_uniform():
    """Identify the operations by their results: all 14 results differ, and 9 of them depend on the sign."""
    image = pictures(1)[:, :, :16, :16].double() / 255
    kinds = torch.cat([torch.arange(ours.OPERATIONS), torch.arange(ours.POSTERIZE)])
    signs = torch.where(torch.arange(len(kinds)) < ours.OPERATIONS, 1.0, -1.0).double()
    outcomes = apply_operation(image.expand(len(kinds), -1, -1, -1), kinds, signs, 9)
    drawn = randaugment(image.expand(2800, -1, -1, -1), random.key(0), 1, 9)
    nearest = torch.cdist(drawn.flatten(1), outcomes.flatten(1)).argmin(1)
    counts = nearest.bincount(minlength=len(kinds)).double()
    expected = torch.where(kinds < ours.POSTERIZE, 100.0, 200.0).double()
    assert chisquare(counts, expected).pvalue > 1e-3


def test_operations_are_applied_in_sequence():
    images = pictures(8).double() / 255
    once = randaugment(images, random.key(0), 1, 9)
    which, coin = random.uniform(random.fold(random.key(0), 1), (2, 8)).unbind()
    twice = apply_operation(once, (which * 14).long(), torch.where(coin < 0.5, -1.0, 1.0).double(), 9)
    assert torch.equal(randaugment(images, random.key(0), 2, 9), twice)
    assert torch.equal(randaugment(images, random.key(0), 0, 9), images)


def test_leading_axes_and_vmap_give_same_result():
    images = pictures(6).double().reshape(2, 3, 3, HEIGHT, WIDTH) / 255
    flat = randaugment(images.flatten(0, 1), random.key(5), 2, 9)
    assert_close(randaugment(images, random.key(5), 2, 9).flatten(0, 1), flat)
    keys = random.split(random.key(5), 2)
    mapped = vmap(lambda images, key: randaugment(images, key, 2, 9))(images, keys)
    assert_close(mapped, torch.stack([randaugment(i, k, 2, 9) for i, k in zip(images, keys, strict=True)]))
    assert flat.dtype == torch.float64
    assert ((flat >= 0) & (flat <= 1)).all()
