"""Augment: data augmentation."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.data.transforms.affine import affine_maps, warp
from pogm.data.transforms.photographs import is_large, to_inputs, to_pixels
from pogm.data.transforms.randaugment import randaugment
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Augment(Modifier):
    r"""Data augmentation: RandAugment (Cubuk et al., 2020) of large images, random affine maps of small images.

    A large image gets two random operations out of fourteen, as in torchvision. A small image (one or two channels, or
    at most 64 pixels wide) is rotated about its centre and shifted. Its colours do not change, because they are the
    domain in ColoredMNIST:

    .. math:: x(p) \leftarrow x(R_\varphi (p - s)), \qquad \varphi \sim U(-10°, 10°), \qquad s \sim U(-0.1, 0.1)^2

    The paper of POGM uses data augmentation but does not describe it; this is our choice. It is applied after the
    transform of the dataset (crops, colours). Labels and prediction are not changed.

    Args:
        operations: Number of RandAugment operations per image.
        magnitude: Magnitude of each operation, 0 to 30.
        degrees: Largest rotation of a small image, to either side.
        shift: Largest shift of a small image, as a fraction of its width and height.
    """

    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")

    operations: int = hyper(2, least=0, most=100)
    magnitude: int = hyper(9, least=0, most=30)
    degrees: float = hyper(10.0, least=0, most=180)
    shift: float = hyper(0.1, least=0, most=1)

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Return the minibatch with every image augmented independently."""
        if batch.x.ndim != 5:
            raise UsageError(
                f"Expected images [K, B, C, H, W] for Augment; found {list(batch.x.shape)}. "
                "Leave Augment out for other data."
            )
        if is_large(batch.x):
            pixels = randaugment(to_pixels(batch.x), key, self.operations, self.magnitude)
            return batch._replace(x=to_inputs(pixels))
        return batch._replace(x=self._transform_small(batch.x, key))

    def _transform_small(self, images: Tensor, key: Tensor) -> Tensor:
        numbers = 2 * random.uniform(key, (3, *images.shape[:2])).to(images.dtype) - 1
        angle, right, down = numbers.unbind()
        height, width = images.shape[-2:]
        maps = affine_maps(self.degrees * angle, self.shift * width * right, self.shift * height * down)
        return warp(images, maps, nearest=False)
