"""RotatedMNIST, and the rotation that it shares with RotatedDigits (Ghifary et al., 2015; DomainBed's variant)."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pogm.data.datasets.base import Domain, DomainDataset, partition
from pogm.data.datasets.digits import read_mnist

ANGLES = ("0", "15", "30", "45", "60", "75")  # degrees, one domain each


class RotatedMNIST(DomainDataset):
    """Digits, rotated by the angle of the domain.

    Input: MNIST digits, 1×28×28.
    Label: the digit.
    Domain: the angle in degrees, counter-clockwise.
    Images: 11667, 11667, 11667, 11667, 11666, 11666.
    Paper: Ghifary et al., Domain Generalization for Object Recognition with Multi-task Autoencoders, ICCV 2015.
    Licence: CC BY-SA 3.0 (MNIST).
    """

    domains = ANGLES
    num_classes = 10
    input_shape = (1, 28, 28)

    def prepare(self, root: Path | None, progress: Any) -> None:
        """Check that the files can be read."""
        read_mnist(root)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; the seed decides the domain of every digit."""
        return make_rotated_domains(*read_mnist(root), seed)


def make_rotated_domains(images: Tensor, digits: Tensor, seed: int) -> list[Domain]:
    """Make one domain per angle from grey images [N, height, width] and their digits [N]."""
    parts = partition(len(images), len(ANGLES), torch.Generator().manual_seed(seed))
    return [
        Domain(rotate(images[part], float(angle))[:, None], digits[part])
        for part, angle in zip(parts, ANGLES, strict=True)
    ]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate uint8 images [N, height, width] counter-clockwise about their centre.

    Bilinear, zero outside, values rounded down: like Pillow, which made the published datasets. The operations have
    Pillow's order, so the results are bit-identical.
    """
    height, width = images.shape[-2:]
    cos, sin = round(math.cos(math.radians(degrees)), 15), round(math.sin(math.radians(degrees)), 15)
    x, y = torch.arange(width).double() + 0.5, torch.arange(height).double()[:, None] + 0.5
    source_x = cos * x - sin * y + (sin * height / 2 - cos * width / 2 + width / 2)  # of each output pixel
    source_y = sin * x + cos * y + (-cos * height / 2 - sin * width / 2 + height / 2)
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)

    left, top = (source_x - 0.5).floor(), (source_y - 0.5).floor()
    columns = [(left.long() + step).clamp(0, width - 1) for step in (0, 1)]
    rows = [(top.long() + step).clamp(0, height - 1) for step in (0, 1)]
    grey = images.double()
    weight_x, weight_y = source_x - 0.5 - left, source_y - 0.5 - top
    upper, lower = (_interpolate(grey[:, row, columns[0]], grey[:, row, columns[1]], weight_x) for row in rows)
    return torch.where(inside, _interpolate(upper, lower, weight_y), 0.0).to(torch.uint8)


def _interpolate(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Interpolate linearly with Pillow's formula; `torch.lerp` rounds differently."""
    return start + (end - start) * weight
