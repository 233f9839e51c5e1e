"""Base class of transforms from stored inputs to network inputs, and the transform of small images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

Part = tuple[slice, slice]  # domains and samples of a minibatch
Statistics = Mapping[str, Tensor]  # of training inputs, by name; empty for images


@dataclass(frozen=True)
class Transform:
    """Transform from stored inputs to inputs of a network.

    A subclass overrides `to_inputs`, and `to_augmented_inputs` if training images are augmented. Images are uint8
    ``[..., C, H, W]``, all of one size. Outputs have the same leading axes, followed by `shape`.

    A transform that uses statistics of the training data, such as means, also overrides `fit` and `normalise`. The
    engine fits the statistics of every trial on the *in* splits of its training domains, and never on other samples.
    """

    is_fitted: ClassVar[bool] = False  # True if `fit` returns statistics

    shape: tuple[int, ...]  # shape of one input of the network; images: channels, height, width

    def to_inputs(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Return inputs without augmentation."""
        raise NotImplementedError

    def fit(self, stored: Sequence[Tensor]) -> Statistics:
        """Return the statistics that `normalise` uses; by default none.

        Args:
            stored: Stored inputs [N, ...] of each training domain, without its validation samples.
        """
        return {}

    def normalise(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Return the outputs of `to_inputs`, normalised by statistics of the training data; by default unchanged."""
        return x

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

    def prepare(self, stored: Tensor, statistics: Statistics, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return inputs of the network for stored inputs, without augmentation, as a prediction needs them."""
        return self.normalise(self.to_inputs(stored, dtype), statistics)

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
