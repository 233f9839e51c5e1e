"""Data augmentation."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.data.transforms.affine import affine_maps, warp
from pogm.data.transforms.randaugment import randaugment
from pogm.data.transforms.ranges import is_large, to_inputs, to_pixels
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Augment(Modifier):
    r"""Data augmentation: RandAugment (Cubuk et al., 2020) of large images, random affine maps of small ones.

    A large image goes through two random changes out of fourteen, as torchvision has them. A small one (of one or two
    channels, or at most 64 pixels wide) is turned about its middle and shifted; its colours, which are the domain in
    ColoredMNIST, stay as they are:

    .. math:: x(p) \leftarrow x(R_\varphi (p - s)), \qquad \varphi \sim U(-10°, 10°), \qquad s \sim U(-0.1, 0.1)^2

    The paper of POGM adds data augmentation without saying which; this is ours. It acts on what the dataset's own
    transform made, so after its crops and colours, not before. Labels stay, and so does prediction.
    """

    spreads: ClassVar[tuple[str, ...]] = ("domains", "samples")

    operations: int = hyper(2, least=0)  # of RandAugment
    magnitude: int = hyper(9, least=0, most=30)  # of each
    degrees: float = hyper(10.0, least=0, most=180)  # of a small image, at most, to either side
    shift: float = hyper(0.1, least=0, most=1)  # likewise, in widths and heights

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Every image changed by random numbers of its own."""
        if batch.x.ndim != 5:
            raise UsageError(
                f"Expected images [K, B, C, H, W] for Augment; found {list(batch.x.shape)}. "
                "Leave Augment out for other data."
            )
        if is_large(batch.x):
            pixels = randaugment(to_pixels(batch.x), key, self.operations, self.magnitude)
            return batch._replace(x=to_inputs(pixels))
        return batch._replace(x=self._displaced(batch.x, key))

    def _displaced(self, images: Tensor, key: Tensor) -> Tensor:
        numbers = 2 * random.uniform(key, (3, *images.shape[:2])).to(images.dtype) - 1
        turn, across, down = numbers.unbind()
        height, width = images.shape[-2:]
        maps = affine_maps(self.degrees * turn, self.shift * width * across, self.shift * height * down)
        return warp(images, maps, nearest=False)
