"""Turned images: how RotatedMNIST is made (Ghifary et al., 2015; DomainBed's variant)."""

import math

import torch
from torch import Tensor

from pogm.datasets.base import Domain, shares

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

    Bilinear; zero outside; fractions of a grey level are cut off. So does Pillow, which made the published sets.
    """
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y = torch.arange(height, dtype=torch.float64) + 0.5 - height / 2
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2
    from_x = cos * x - sin * y[:, None] + width / 2  # where each pixel comes from, in pixel edges
    from_y = sin * x + cos * y[:, None] + height / 2
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)

    left, top = (from_x - 0.5).floor(), (from_y - 0.5).floor()
    right_share, bottom_share = from_x - 0.5 - left, from_y - 0.5 - top
    total = torch.zeros(images.shape, dtype=torch.float64)
    for down, y_share in ((0, 1 - bottom_share), (1, bottom_share)):
        for along, x_share in ((0, 1 - right_share), (1, right_share)):
            row = (top.long() + down).clamp(0, height - 1)
            column = (left.long() + along).clamp(0, width - 1)
            total += images[:, row, column] * (y_share * x_share)
    return torch.where(inside, total + 1e-9, 0.0).to(torch.uint8)
