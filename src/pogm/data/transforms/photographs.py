"""DomainBed's transform of large images."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.data.transforms.base import Part, Transform
from pogm.data.transforms.color import greyscale, in_order, jitter
from pogm.data.transforms.crop import crop_boxes
from pogm.data.transforms.resize import resize, resized_crop

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's red, green and blue
DEVIATION = (0.229, 0.224, 0.225)
FLIPPED = 0.5  # the share of training images
GREYED = 0.1
HANDFUL = 4  # images that a CPU changes at a time: few enough for its cache


@dataclass(frozen=True)
class Photographs(Transform):
    """Resized and normalised; in training also cropped, flipped, and changed in colour (Gulrajani and Lopez-Paz, 2021).

    DomainBed rounds to bytes after every change; here nothing is rounded. And a box is cut out of the stored image, not
    of the original: the same part of the picture, but seen through two resizes.
    """

    shape: tuple[int, int, int] = (3, 224, 224)
    augment: bool = True  # what is trained on
    augment_evaluation: bool = True  # and training domains when they are evaluated

    def __post_init__(self) -> None:
        channels, height, width = self.shape
        if channels != 3 or height != width:
            raise UsageError(
                f"Expected photographs of three channels, as high as wide; found the shape {self.shape}. "
                "Give a shape such as (3, 224, 224)."
            )

    def for_training(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """Augmented, unless that is off."""
        return self.augmented(images, sizes, key, dtype, part) if self.augment else self.plain(images, dtype)

    def for_evaluation(
        self, images: Tensor, sizes: Tensor, keys: Tensor, dtype: torch.dtype, trained: Tensor | bool
    ) -> Tensor:
        """Test domains plain; training domains augmented, unless that is off."""
        if trained is False or not (self.augment and self.augment_evaluation):
            return self.plain(images, dtype)
        augmented = self.augmented(images, sizes, keys, dtype)
        if trained is True:
            return augmented
        return torch.where(torch.as_tensor(trained)[..., None, None, None], augmented, self.plain(images, dtype))

    def plain(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Whole images, resized and normalised."""
        return _normalised(resize(images.to(_wide(dtype)), self.shape[-1]) / 255, dtype)

    def augmented(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """A random part of each image, perhaps flipped, in random colours or perhaps none, normalised.

        ``key`` is one for all images, or [N], one for each: then an image does not depend on what it comes with.
        """
        leading, stored = images.shape[:-3], images.shape[-3:]
        draw = partial(_drawn, height=stored[-2], width=stored[-1])
        changes = vmap(draw)(key, sizes) if key.ndim else draw(key, sizes)
        if part is not None:
            changes = _Changes(*(change[part] for change in changes))
        count = leading.numel()
        flat = (images.reshape(count, *stored), *(part.flatten(0, len(leading) - 1) for part in changes))
        size = HANDFUL if images.device.type == "cpu" else count
        handfuls = zip(*(torch.split(part, size) for part in flat), strict=True)
        done = torch.cat([self._changed(few, _Changes(*parts), dtype) for few, *parts in handfuls])
        return done.reshape(*leading, *self.shape)

    def _changed(self, images: Tensor, changes: "_Changes", dtype: torch.dtype) -> Tensor:
        # Bytes, not fractions: they are exact in TF32 as well, in which the session may have matrices multiplied.
        parts = resized_crop(images.to(_wide(dtype)), changes.boxes, self.shape[-1], changes.flip) / 255
        return _normalised(greyscale(in_order(parts, changes.amounts, changes.order), changes.grey), dtype)


class _Changes(NamedTuple):
    """What happens to each image."""

    boxes: Tensor  # [..., 4] in stored pixels
    flip: Tensor  # [...]
    amounts: Tensor  # [..., 4] of colour
    order: Tensor  # [..., 4] in which colours change
    grey: Tensor  # [...]


def _drawn(key: Tensor, sizes: Tensor, height: int, width: int) -> _Changes:
    """Random changes of images with those original sizes [..., 2], stored at one height and width."""
    for_boxes, for_coins, for_colors = random.split(key, 3).unbind()
    leading = tuple(sizes.shape[:-1])
    tall, wide = sizes.to(torch.float64).unbind(-1)
    scale = torch.stack([height / tall, width / wide] * 2, -1)  # stored pixels for each original one
    flip, grey = random.uniform(for_coins, (*leading, 2)).unbind(-1)
    colors = jitter(for_colors, leading)
    return _Changes(crop_boxes(for_boxes, sizes) * scale, flip < FLIPPED, *colors, grey < GREYED)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float32, or the one asked for if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def _normalised(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Channels as ImageNet's networks expect them. Their statistics are not made a tensor: copying one waits."""
    channels = zip(images.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([((channel - mean) / deviation).to(dtype) for channel, mean, deviation in channels], -3)
