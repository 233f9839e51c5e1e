"""Base class of transforms from stored images to network inputs, and the transform of small images."""

from dataclasses import dataclass

import torch
from torch import Tensor

Part = tuple[slice, slice]  # domains and samples of a minibatch


@dataclass(frozen=True)
class Transform:
    """Transform from stored images to inputs of a network.

    A subclass overrides `to_inputs`, and `to_augmented_inputs` if training images are augmented. Images are uint8
    ``[..., C, H, W]``, all of one size. Outputs have the same leading axes, followed by `shape`.
    """

    shape: tuple[int, int, int]  # shape of one input: channels, height, width

    def to_inputs(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Return inputs without augmentation."""
        raise NotImplementedError

    def to_augmented_inputs(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """Return augmented inputs; by default the same as `to_inputs`.

        Args:
            images: Stored images.
            sizes: [..., 2] original heights and widths, before images were resized for storage.
            key: Random key.
            dtype: Type of the inputs.
            part: If given, `images` are this part of a minibatch and `sizes` those of the whole minibatch. The outputs
                are the same as in the whole minibatch.
        """
        return self.to_inputs(images, dtype)

    def for_training(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """Return the inputs of a training minibatch, or of a part of one. Arguments as in `to_augmented_inputs`."""
        return self.to_augmented_inputs(images, sizes, key, dtype, part)

    def for_evaluation(
        self, images: Tensor, sizes: Tensor, keys: Tensor, dtype: torch.dtype, trained: Tensor | bool
    ) -> Tensor:
        """Return the inputs of an evaluation.

        Args:
            images: Stored images.
            sizes: [N, 2] original heights and widths.
            keys: [N] one random key per image, so that the result does not depend on the batches.
            dtype: Type of the inputs.
            trained: True for images of training domains: [N], or one value for all.
        """
        return self.to_inputs(images, dtype)


@dataclass(frozen=True)
class Pixels(Transform):
    """DomainBed's transform of small images: bytes to values in [0, 1]."""

    def to_inputs(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the images in [0, 1]."""
        return images.to(dtype) / 255
