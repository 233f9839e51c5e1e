"""Pixels as they are stored, in [0, 1]."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.data.transforms.base import Transform


@dataclass(frozen=True)
class Pixels(Transform):
    """Bytes to numbers in [0, 1], and nothing else: DomainBed's transform of small images."""

    def plain(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """The images in [0, 1]."""
        return images.to(dtype) / 255
