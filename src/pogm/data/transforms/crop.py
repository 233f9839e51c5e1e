"""Boxes of random resized crops."""

import math

import torch
from torch import Tensor

from pogm.core import random

AREA = (0.7, 1.0)  # fraction of the image's area, uniform
RATIO = (3 / 4, 4 / 3)  # width / height, log-uniform
ATTEMPTS = 10


def draw_crop_boxes(key: Tensor, sizes: Tensor) -> Tensor:
    """Draw boxes [..., 4] in images of `sizes` [..., 2]: top, left, height, width, as whole numbers in float64.

    The distribution is that of torchvision's RandomResizedCrop: the first of ten attempts at an area and a ratio that
    fits into the image, at a uniform position; if none fits, the largest central box with an allowed ratio.
    """
    height, width = sizes.to(torch.float64).unbind(-1)  # [...]
    numbers = random.uniform(key, (*height.shape, ATTEMPTS + 1, 2))  # a pair for each attempt, and one for the position
    tall, wide, fits = _compute_attempts(
        numbers[..., :ATTEMPTS, :], height.unsqueeze(-1), width.unsqueeze(-1)
    )  # [..., 10]
    first = fits.to(torch.int64).argmax(-1, keepdim=True)
    found = fits.any(-1)
    central_tall, central_wide = _central_box(height, width)
    tall = torch.where(found, tall.gather(-1, first).squeeze(-1), central_tall)
    wide = torch.where(found, wide.gather(-1, first).squeeze(-1), central_wide)
    down, right = numbers[..., ATTEMPTS, :].unbind(-1)
    top = torch.where(found, down * (height - tall + 1), (height - tall) / 2).floor()
    left = torch.where(found, right * (width - wide + 1), (width - wide) / 2).floor()
    return torch.stack([top, left, tall, wide], -1)


def _compute_attempts(numbers: Tensor, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return heights and widths of boxes from pairs of numbers in [0, 1), and which of them fit into the image."""
    area_number, ratio_number = numbers.unbind(-1)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * area_number)
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = (low + (high - low) * ratio_number).exp()
    tall, wide = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    return tall, wide, (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)


def _central_box(height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return the height and width of the largest box with an allowed ratio."""
    ratio = width / height
    tall = torch.where(ratio < RATIO[0], (width / RATIO[0]).round(), height)
    wide = torch.where(ratio > RATIO[1], (height * RATIO[1]).round(), width)
    return tall, wide
