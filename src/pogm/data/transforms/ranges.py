"""Pixels in [0, 1] out of what a network sees, and back: for changes of images that come after their transform."""

import torch
from torch import Tensor

from pogm.data.transforms.photographs import DEVIATION, MEAN

SMALL = 64  # pixels wide: what ``Photographs`` makes is larger


def is_large(images: Tensor) -> bool:
    """Whether images [..., C, H, W] are photographs, which are normalised, and not small ones, which are pixels."""
    return images.shape[-3] == 3 and images.shape[-1] > SMALL


def to_pixels(images: Tensor) -> Tensor:
    """Inputs [..., C, H, W] of a network as pixels in [0, 1]."""
    if not is_large(images):
        return images
    channels = zip(images.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([channel * deviation + mean for channel, mean, deviation in channels], -3).clamp(0, 1)


def to_inputs(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the inputs they were before."""
    if not is_large(pixels):
        return pixels
    channels = zip(pixels.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([(channel - mean) / deviation for channel, mean, deviation in channels], -3)
