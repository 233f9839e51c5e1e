"""Changes of colour, each image by an amount of its own, as torchvision computes them on floats.

Images are [..., 3, H, W] in [0, 1], amounts are [...], of the same type. Brightness, contrast and saturation are one
blend with three different bases: black, the mean of the grey image, and the grey image.
"""

import torch
from torch import Tensor

from pogm.core import random

GREY = (0.2989, 0.587, 0.114)  # of red, green and blue
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
MOST = 0.3  # by which a factor is off one, and by which hue turns, in turns of the colour wheel


def jitter(key: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Random amounts [..., 4] of brightness, contrast, saturation and hue, and a random order [..., 4] of these."""
    size, rank = random.uniform(key, (*shape, 2, 4)).unbind(-2)
    neutral = torch.arange(4, device=key.device) != HUE  # a factor of one, but no turn
    return neutral + MOST * (2 * size - 1), rank.argsort(-1)


def in_order(images: Tensor, amounts: Tensor, order: Tensor) -> Tensor:
    """All four changes: ``amounts`` [..., 4] of brightness, contrast, saturation and hue; ``order`` [..., 4] of these.

    Hue costs more than the others together, and its place differs from image to image. So it is computed once, for
    all of them, between the changes that come before it and those that come after: in a slot that belongs to the other
    side, or to the hue, an image is blended by a factor of one, which leaves every bit of it as it is.
    """
    amounts = amounts.to(images.dtype)
    factors = amounts.gather(-1, order)
    slot = torch.arange(4, device=images.device)
    place = (slot * (order == HUE)).sum(-1, keepdim=True)  # [..., 1]: the slot of the hue
    before = torch.where(slot < place, factors, 1.0).unbind(-1)
    after = torch.where(slot > place, factors, 1.0).unbind(-1)
    kinds = order.unbind(-1)
    for i in (0, 1, 2):
        images = blend(images, kinds[i], before[i])
    images = hue(images, amounts[..., HUE])
    for i in (1, 2, 3):
        images = blend(images, kinds[i], after[i])
    return images


def blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Away from a base for factors above one, towards it below. ``kind`` [...] says which change it is."""
    grey = _grey(images)
    mean = torch.where(_per_image(kind == CONTRAST), grey.mean((-2, -1), keepdim=True), 0.0)
    base = torch.where(_per_image(kind == SATURATION), grey, mean)
    return torch.lerp(base, images, _per_image(factor)).clamp(0, 1)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Around the colour wheel by ``shift`` turns, at the same saturation and value.

    The wheel has six parts. In each, one channel is the largest, one the smallest, and the third lies between them in
    proportion to the angle: a channel as a function of the angle is a trapezium, from the smallest to the largest.
    """
    red, green, blue = images.unbind(-3)
    least = images.amin(-3)
    most = images.amax(-3)
    spread = most - least
    is_red, is_green = red == most, green == most
    difference = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0).to(images.dtype))
    # A grey pixel has no angle, and any will do: its spread is nought.
    angle = torch.addcdiv(sector, difference, spread.clamp(min=torch.finfo(images.dtype).tiny))
    angle = (angle + (6 * shift)[..., None, None]).remainder(6)
    parts = (angle - 3).abs() - 1, 2 - (angle - 2).abs(), 2 - (angle - 4).abs()
    return torch.stack([torch.addcmul(least, spread, part.clamp(0, 1)) for part in parts], -3)


def greyscale(images: Tensor, chosen: Tensor) -> Tensor:
    """The grey image in all three channels, where ``chosen``."""
    return torch.where(_per_image(chosen), _grey(images), images)


def _grey(images: Tensor) -> Tensor:
    """How bright each pixel is: [..., 1, H, W]."""
    red, green, blue = images.unbind(-3)
    return (GREY[0] * red).add(green, alpha=GREY[1]).add(blue, alpha=GREY[2]).unsqueeze(-3)


def _per_image(amounts: Tensor) -> Tensor:
    """Amounts [...] in the shape in which each meets its image."""
    return amounts[..., None, None, None]
