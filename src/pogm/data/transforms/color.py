"""Colour jitter with one amount per image, with the results of torchvision on floats.

Images are [..., 3, H, W] in [0, 1]; amounts are [...] of the same type. Brightness, contrast and saturation are one
blend with three different bases: black, the mean of the grey image, and the grey image.
"""

import torch
from torch import Tensor

from pogm.core import random

GREY = (0.2989, 0.587, 0.114)  # weights of red, green and blue
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
MOST = 0.3  # largest change: of a factor from one, and of the hue in turns of the colour wheel


def draw_jitter(key: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Draw amounts [..., 4] of brightness, contrast, saturation and hue, and the order [..., 4] to apply them in."""
    size, rank = random.uniform(key, (*shape, 2, 4)).unbind(-2)
    neutral = torch.arange(4, device=key.device) != HUE  # factor 1, hue shift 0
    return neutral + MOST * (2 * size - 1), rank.argsort(-1)


def apply_jitter(images: Tensor, amounts: Tensor, order: Tensor) -> Tensor:
    """Apply the four changes of each image in the order of that image.

    The hue is the most expensive change, and its position in the order differs between images. It is computed once for
    all images, after the blends that come before it and before those that come after it. In a position that does not
    belong to the current side, the image is blended with factor 1, which changes no bit.

    Args:
        images: [..., 3, H, W] in [0, 1].
        amounts: [..., 4] of brightness, contrast, saturation and hue.
        order: [..., 4] the order of these four.
    """
    amounts = amounts.to(images.dtype)
    factors = amounts.gather(-1, order)
    position = torch.arange(4, device=images.device)
    of_hue = (position * (order == HUE)).sum(-1, keepdim=True)  # [..., 1]
    before = torch.where(position < of_hue, factors, 1.0).unbind(-1)
    after = torch.where(position > of_hue, factors, 1.0).unbind(-1)
    kinds = order.unbind(-1)
    for i in (0, 1, 2):
        images = blend(images, kinds[i], before[i])
    images = shift_hue(images, amounts[..., HUE])
    for i in (1, 2, 3):
        images = blend(images, kinds[i], after[i])
    return images


def blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with the base of its `kind` [...]: towards it if factor < 1, away from it if factor > 1."""
    grey = _luminance(images)
    mean = torch.where(_per_image(kind == CONTRAST), grey.mean((-2, -1), keepdim=True), 0.0)
    base = torch.where(_per_image(kind == SATURATION), grey, mean)
    return torch.lerp(base, images, _per_image(factor)).clamp(0, 1)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by `shift` turns of the colour wheel, with the same saturation and value.

    The wheel has six sectors. In each, one channel is the largest, one the smallest, and the third is linear in the
    angle. So each channel is a trapezoidal function of the angle, between the smallest and the largest value.
    """
    red, green, blue = images.unbind(-3)
    smallest = images.amin(-3)
    largest = images.amax(-3)
    spread = largest - smallest
    is_red, is_green = red == largest, green == largest
    difference = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0).to(images.dtype))
    # A grey pixel has no angle. Any angle gives the same pixel, because its spread is zero.
    angle = torch.addcdiv(sector, difference, spread.clamp(min=torch.finfo(images.dtype).tiny))
    angle = (angle + (6 * shift)[..., None, None]).remainder(6)
    parts = (angle - 3).abs() - 1, 2 - (angle - 2).abs(), 2 - (angle - 4).abs()
    return torch.stack([torch.addcmul(smallest, spread, part.clamp(0, 1)) for part in parts], -3)


def to_greyscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Convert the images where `chosen` [...] to grey, in all three channels."""
    return torch.where(_per_image(chosen), _luminance(images), images)


def _luminance(images: Tensor) -> Tensor:
    """Return the luminance of each pixel: [..., 1, H, W]."""
    red, green, blue = images.unbind(-3)
    return (GREY[0] * red).add(green, alpha=GREY[1]).add(blue, alpha=GREY[2]).unsqueeze(-3)


def _per_image(amounts: Tensor) -> Tensor:
    """Return amounts [...] as [..., 1, 1, 1], to broadcast with images."""
    return amounts[..., None, None, None]
