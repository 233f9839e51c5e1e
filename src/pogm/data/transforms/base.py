"""A transform: how stored images become the inputs of a network."""

from dataclasses import dataclass

import torch
from torch import Tensor

Part = tuple[slice, slice]  # domains and samples of a minibatch


@dataclass(frozen=True)
class Transform:
    """Override ``plain``; and ``augmented``, where training sees something else.

    Images are uint8 ``[..., C, H, W]``, all of one size; what comes out has the same leading axes, before ``shape``.
    """

    shape: tuple[int, int, int]  # of one input: channels, height, width

    def plain(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """What evaluation sees."""
        raise NotImplementedError

    def augmented(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """What training sees. ``sizes`` [..., 2] are the heights and widths before all images were made one size.

        With ``part``, the images are that part of those whose sizes are given, and come out as they would among all.
        """
        return self.plain(images, dtype)

    def for_training(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """A minibatch, or a part of one."""
        return self.augmented(images, sizes, key, dtype, part)

    def for_evaluation(
        self, images: Tensor, sizes: Tensor, keys: Tensor, dtype: torch.dtype, trained: Tensor | bool
    ) -> Tensor:
        """What is evaluated; ``trained`` ([N], or one for all) tells images of training domains from the others.

        ``keys`` [N] has one for each image, so that it does not matter which are evaluated in one pass.
        """
        return self.plain(images, dtype)
