"""RandAugment (Cubuk et al., 2020): random operations out of fourteen for each image, with torchvision's magnitudes.

Images are [..., 3, H, W] in [0, 1]. Every operation is computed for all images and selected with `torch.where`, so that
nothing synchronises with the device. Rotation, shear and translation are one warp, and the four blends are two, which
limits the cost. Values are not rounded to bytes, except in operations that are defined on bytes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pogm.core import random
from pogm.data.transforms.affine import affine_maps, shear_maps, warp
from pogm.data.transforms.color import SATURATION, blend

# Operations 0, 1 and 2 are those of `color`: brightness, contrast and saturation.
SHARPNESS, SHEAR_X, SHEAR_Y, SHIFT_X, SHIFT_Y, ROTATE, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE, IDENTITY = range(
    3, 14
)
OPERATIONS = 14
STRONGEST = 30  # largest magnitude
SHEAR, DEGREES, FACTOR, SHIFT, BITS = (
    0.3,
    30.0,
    0.9,
    150 / 331,
    4,
)  # at the largest magnitude; the shift is a fraction of the width
LEVELS = 256  # values of a byte


def randaugment(images: Tensor, key: Tensor, operations: int, magnitude: int) -> Tensor:
    """Apply a number of random operations to every image, one after the other."""
    leading = tuple(images.shape[:-3])
    for number in range(operations):
        which, coin = random.uniform(random.fold(key, number), (2, *leading)).unbind()
        sign = torch.where(coin < 0.5, -1.0, 1.0).to(images.dtype)
        images = apply_operation(images, (which * OPERATIONS).long(), sign, magnitude)
    return images


def apply_operation(images: Tensor, kind: Tensor, sign: Tensor, magnitude: int) -> Tensor:
    """Apply to each image the operation `kind` [...], in the direction of `sign` [...] if it has two."""
    level = magnitude / STRONGEST
    images = _move(images, kind, sign * level)
    factor = 1 + FACTOR * level * sign
    images = blend(images, kind, torch.where(kind <= SATURATION, factor, 1.0))
    for operation, result in (
        (SHARPNESS, torch.lerp(_blur(images), images, factor[..., None, None, None]).clamp(0, 1)),
        (POSTERIZE, posterize(images, 8 - round(BITS * level))),
        (SOLARIZE, torch.where(images >= 1 - level, 1 - images, images)),
        (AUTOCONTRAST, autocontrast(images)),
        (EQUALIZE, equalize(images)),
    ):
        images = torch.where((kind == operation)[..., None, None, None], result, images)
    return images


def posterize(images: Tensor, bits: int) -> Tensor:
    """Keep only the first bits of each byte."""
    step = 1 << (8 - bits)
    return (_to_bytes(images) / step).floor() * (step / 255)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch the values of every channel to [0, 1]; a channel with a single value stays unchanged."""
    low, high = images.amin((-2, -1), keepdim=True), images.amax((-2, -1), keepdim=True)
    flat = high == low
    stretched = (images - low) / torch.where(flat, 1.0, high - low)
    return torch.where(flat, images, stretched.clamp(0, 1))


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of every channel, with Pillow's formula."""
    values = _to_bytes(images).long().flatten(-2)  # [..., C, H W]
    counts = torch.zeros(*values.shape[:-1], LEVELS, dtype=torch.int64, device=images.device)
    counts = counts.scatter_add(-1, values, torch.ones_like(values))
    brightest = counts.gather(-1, values.amax(-1, keepdim=True))
    step = (values.shape[-1] - brightest) // (LEVELS - 1)  # pixels per new value: [..., C, 1]
    below = counts.cumsum(-1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=LEVELS - 1)
    spread = table.gather(-1, values).to(images.dtype) / 255
    return torch.where(step[..., None] == 0, images, spread.view(images.shape))


def _move(images: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Shear, translate by whole pixels, or rotate."""
    height, width = images.shape[-2:]

    def only(operation: int, amount: Tensor) -> Tensor:
        return torch.where(kind == operation, amount, 0.0)

    shears = shear_maps(only(SHEAR_X, SHEAR * level), only(SHEAR_Y, SHEAR * level), height, width)
    right, down = (SHIFT * size * level for size in (width, height))
    others = affine_maps(only(ROTATE, -DEGREES * level), only(SHIFT_X, right.trunc()), only(SHIFT_Y, down.trunc()))
    sheared = (kind == SHEAR_X) | (kind == SHEAR_Y)
    return warp(images, torch.where(sheared[..., None, None], shears, others), nearest=True)


def _blur(images: Tensor) -> Tensor:
    """Blur with a 3×3 kernel of centre weight 5 and neighbour weight 1; pixels on the edge stay unchanged."""
    if min(images.shape[-2:]) < 3:
        return images
    inner = images[..., 1:-1, 1:-1]
    flat = images.reshape(-1, *images.shape[-3:])
    mean = F.avg_pool2d(flat, 3, stride=1).view(inner.shape)
    return images + F.pad((9 * mean + 4 * inner) / 13 - inner, (1, 1, 1, 1))


def _to_bytes(images: Tensor) -> Tensor:
    return (images * 255).round()
