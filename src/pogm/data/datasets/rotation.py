"""Turned images: how RotatedMNIST is made (Ghifary et al., 2015; DomainBed's variant)."""

import math

import torch
from torch import Tensor

from pogm.data.datasets.base import Domain, shares

ANGLES = ("0", "15", "30", "45", "60", "75")  # degrees, one domain each


def rotated(images: Tensor, digits: Tensor, seed: int) -> list[Domain]:
    """One domain per angle, of grey images [N, height, width] and their digits."""
    dealt = shares(len(images), len(ANGLES), torch.Generator().manual_seed(seed))
    return [
        Domain(rotate(images[share], float(angle))[:, None], digits[share])
        for share, angle in zip(dealt, ANGLES, strict=True)
    ]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn 8-bit images [N, height, width] counter-clockwise about their centre.

    Bilinear; zero outside; fractions of a grey level are cut off. So does Pillow, which made the published sets; the
    order of operations is its own, so that the images agree to the last bit.
    """
    height, width = images.shape[-2:]
    cos, sin = round(math.cos(math.radians(degrees)), 15), round(math.sin(math.radians(degrees)), 15)
    x, y = torch.arange(width).double() + 0.5, torch.arange(height).double()[:, None] + 0.5
    from_x = cos * x - sin * y + (sin * height / 2 - cos * width / 2 + width / 2)  # where each pixel comes from
    from_y = sin * x + cos * y + (-cos * height / 2 - sin * width / 2 + height / 2)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)

    left, top = (from_x - 0.5).floor(), (from_y - 0.5).floor()
    columns = [(left.long() + step).clamp(0, width - 1) for step in (0, 1)]
    rows = [(top.long() + step).clamp(0, height - 1) for step in (0, 1)]
    grey = images.double()
    upper, lower = (between(grey[:, row, columns[0]], grey[:, row, columns[1]], from_x - 0.5 - left) for row in rows)
    return torch.where(inside, between(upper, lower, from_y - 0.5 - top), 0.0).to(torch.uint8)


def between(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    """Linear interpolation, as Pillow writes it."""
    return start + (end - start) * share
