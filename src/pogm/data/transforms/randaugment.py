"""RandAugment (Cubuk et al., 2020): some of fourteen changes, each image by its own, with torchvision's strengths.

Images are [..., 3, H, W] in [0, 1]. A change is applied to all of them, with no effect on those that drew another one:
turning, shearing and shifting are one warp, and the four blends towards a base are two, so that this costs less than
it seems, and nothing waits for the device. Nothing is rounded to bytes, but where a change is about bytes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pogm.core import random
from pogm.data.transforms.affine import affine_maps, shear_maps, warp
from pogm.data.transforms.color import SATURATION, blend

# The first three are those of ``color``: brightness, contrast and saturation.
SHARPNESS, SHEAR_X, SHEAR_Y, SHIFT_X, SHIFT_Y, ROTATE, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE, IDENTITY = range(
    3, 14
)
CHANGES = 14
STRONGEST = 30  # of magnitudes
SHEAR, TURN, FACTOR, SHIFT, BITS = 0.3, 30.0, 0.9, 150 / 331, 4  # at the strongest; a shift in widths
LEVELS = 256  # of a byte


def randaugment(images: Tensor, key: Tensor, operations: int, magnitude: int) -> Tensor:
    """So many random changes of every image, one after the other."""
    leading = tuple(images.shape[:-3])
    for number in range(operations):
        which, coin = random.uniform(random.fold(key, number), (2, *leading)).unbind()
        sign = torch.where(coin < 0.5, -1.0, 1.0).to(images.dtype)
        images = changed(images, (which * CHANGES).long(), sign, magnitude)
    return images


def changed(images: Tensor, kind: Tensor, sign: Tensor, magnitude: int) -> Tensor:
    """Each image changed as its ``kind`` [...] says, in the direction of ``sign`` [...] where there are two."""
    level = magnitude / STRONGEST
    images = _moved(images, kind, sign * level)
    factor = 1 + FACTOR * level * sign
    images = blend(images, kind, torch.where(kind <= SATURATION, factor, 1.0))
    for one, change in (
        (SHARPNESS, torch.lerp(_blurred(images), images, factor[..., None, None, None]).clamp(0, 1)),
        (POSTERIZE, posterized(images, 8 - round(BITS * level))),
        (SOLARIZE, torch.where(images >= 1 - level, 1 - images, images)),
        (AUTOCONTRAST, autocontrasted(images)),
        (EQUALIZE, equalized(images)),
    ):
        images = torch.where((kind == one)[..., None, None, None], change, images)
    return images


def posterized(images: Tensor, bits: int) -> Tensor:
    """Bytes of which only the first bits are left."""
    step = 1 << (8 - bits)
    return (_bytes(images) / step).floor() * (step / 255)


def autocontrasted(images: Tensor) -> Tensor:
    """Every channel stretched from its darkest and lightest to black and white; one of a single value stays."""
    least, most = images.amin((-2, -1), keepdim=True), images.amax((-2, -1), keepdim=True)
    flat = most == least
    stretched = (images - least) / torch.where(flat, 1.0, most - least)
    return torch.where(flat, images, stretched.clamp(0, 1))


def equalized(images: Tensor) -> Tensor:
    """Every channel with its bytes spread so that each range of them has about as many pixels, as Pillow does it."""
    values = _bytes(images).long().flatten(-2)  # [..., C, H W]
    counts = torch.zeros(*values.shape[:-1], LEVELS, dtype=torch.int64, device=images.device)
    counts = counts.scatter_add(-1, values, torch.ones_like(values))
    brightest = counts.gather(-1, values.amax(-1, keepdim=True))
    step = (values.shape[-1] - brightest) // (LEVELS - 1)  # pixels for each new value: [..., C, 1]
    below = counts.cumsum(-1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=LEVELS - 1)
    spread = table.gather(-1, values).to(images.dtype) / 255
    return torch.where(step[..., None] == 0, images, spread.view(images.shape))


def _moved(images: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Sheared, shifted by whole pixels or turned."""
    height, width = images.shape[-2:]

    def only(one: int, amount: Tensor) -> Tensor:
        return torch.where(kind == one, amount, 0.0)

    shears = shear_maps(only(SHEAR_X, SHEAR * level), only(SHEAR_Y, SHEAR * level), height, width)
    right, down = (SHIFT * size * level for size in (width, height))
    turns = affine_maps(only(ROTATE, -TURN * level), only(SHIFT_X, right.trunc()), only(SHIFT_Y, down.trunc()))
    sheared = (kind == SHEAR_X) | (kind == SHEAR_Y)
    return warp(images, torch.where(sheared[..., None, None], shears, turns), nearest=True)


def _blurred(images: Tensor) -> Tensor:
    """Each pixel the mean of itself, five times, and its neighbours; those on the edge as they are."""
    if min(images.shape[-2:]) < 3:
        return images
    inner = images[..., 1:-1, 1:-1]
    flat = images.reshape(-1, *images.shape[-3:])
    mean = F.avg_pool2d(flat, 3, stride=1).view(inner.shape)
    return images + F.pad((9 * mean + 4 * inner) / 13 - inner, (1, 1, 1, 1))


def _bytes(images: Tensor) -> Tensor:
    return (images * 255).round()
