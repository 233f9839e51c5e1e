"""DomainBed's transform of large images, and its inverse for operations on network inputs."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.data.transforms.base import Part, Transform
from pogm.data.transforms.color import apply_jitter, draw_jitter, to_greyscale
from pogm.data.transforms.crop import draw_crop_boxes
from pogm.data.transforms.resize import resize, resized_crop

MEAN = (0.485, 0.456, 0.406)  # ImageNet's red, green and blue
DEVIATION = (0.229, 0.224, 0.225)
FLIPPED = 0.5  # probability of a horizontal flip
GREYED = 0.1  # probability of greyscale
CPU_BATCH = 4  # images that a CPU augments at a time, so that they fit into its cache
SMALL = 64  # largest width of images that are not photographs


@dataclass(frozen=True)
class Photographs(Transform):
    """DomainBed's transform of large images (Gulrajani and Lopez-Paz, 2021).

    All images are resized and normalised. Training images are also cropped, flipped and changed in colour at random.

    Two differences from DomainBed: values are not rounded to bytes after every operation, and a box is cropped from the
    stored image and not from the original, so the same part of the picture is resized twice.
    """

    shape: tuple[int, int, int] = (3, 224, 224)
    augment: bool = True  # augment training minibatches
    augment_evaluation: bool = True  # also augment training domains in evaluations

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
        """Return augmented inputs, or plain ones if `augment` is off."""
        return (
            self.to_augmented_inputs(images, sizes, key, dtype, part) if self.augment else self.to_inputs(images, dtype)
        )

    def for_evaluation(
        self, images: Tensor, sizes: Tensor, keys: Tensor, dtype: torch.dtype, trained: Tensor | bool
    ) -> Tensor:
        """Return plain inputs for test domains, and augmented ones for training domains unless that is off."""
        if trained is False or not (self.augment and self.augment_evaluation):
            return self.to_inputs(images, dtype)
        augmented = self.to_augmented_inputs(images, sizes, keys, dtype)
        if trained is True:
            return augmented
        return torch.where(torch.as_tensor(trained)[..., None, None, None], augmented, self.to_inputs(images, dtype))

    def to_inputs(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Return whole images, resized and normalised."""
        return _normalise(resize(images.to(_compute_dtype(dtype)), self.shape[-1]) / 255, dtype)

    def to_augmented_inputs(
        self, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """Return augmented inputs: random crop, flip, colour jitter and greyscale, then normalised.

        `key` is one key for all images, or [N] keys, one per image; then an output does not depend on the other images.
        """
        leading, stored = images.shape[:-3], images.shape[-3:]
        draw = partial(_draw_augmentation, height=stored[-2], width=stored[-1])
        augmentation = vmap(draw)(key, sizes) if key.ndim else draw(key, sizes)
        if part is not None:
            augmentation = _Augmentation(*(field[part] for field in augmentation))
        count = leading.numel()
        flat = (images.reshape(count, *stored), *(field.flatten(0, len(leading) - 1) for field in augmentation))
        size = CPU_BATCH if images.device.type == "cpu" else count
        batches = zip(*(torch.split(tensor, size) for tensor in flat), strict=True)
        done = torch.cat([self._apply(batch, _Augmentation(*fields), dtype) for batch, *fields in batches])
        return done.reshape(*leading, *self.shape)

    def _apply(self, images: Tensor, augmentation: "_Augmentation", dtype: torch.dtype) -> Tensor:
        # The crop gets bytes, not fractions, because bytes are exact in TF32, which matrix products may use.
        wide = images.to(_compute_dtype(dtype))
        crops = resized_crop(wide, augmentation.boxes, self.shape[-1], augmentation.flip) / 255
        colored = apply_jitter(crops, augmentation.amounts, augmentation.order)
        return _normalise(to_greyscale(colored, augmentation.grey), dtype)


def is_large(images: Tensor) -> bool:
    """Return True if inputs [..., C, H, W] are photographs, which are normalised, and not small images in [0, 1]."""
    return images.shape[-3] == 3 and images.shape[-1] > SMALL


def to_pixels(inputs: Tensor) -> Tensor:
    """Convert network inputs [..., C, H, W] to pixels in [0, 1]."""
    if not is_large(inputs):
        return inputs
    channels = zip(inputs.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([channel * deviation + mean for channel, mean, deviation in channels], -3).clamp(0, 1)


def to_inputs(pixels: Tensor) -> Tensor:
    """Convert pixels in [0, 1] back to network inputs."""
    if not is_large(pixels):
        return pixels
    channels = zip(pixels.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([(channel - mean) / deviation for channel, mean, deviation in channels], -3)


class _Augmentation(NamedTuple):
    """Random parameters of the augmentation of each image."""

    boxes: Tensor  # [..., 4] in stored pixels
    flip: Tensor  # [...]
    amounts: Tensor  # [..., 4] of brightness, contrast, saturation and hue
    order: Tensor  # [..., 4] of these four
    grey: Tensor  # [...]


def _draw_augmentation(key: Tensor, sizes: Tensor, height: int, width: int) -> _Augmentation:
    """Draw parameters for images with original sizes [..., 2], stored at one height and width."""
    box_key, coin_key, color_key = random.split(key, 3).unbind()
    leading = tuple(sizes.shape[:-1])
    tall, wide = sizes.to(torch.float64).unbind(-1)
    scale = torch.stack([height / tall, width / wide] * 2, -1)  # stored pixels per original pixel
    flip, grey = random.uniform(coin_key, (*leading, 2)).unbind(-1)
    colors = draw_jitter(color_key, leading)
    return _Augmentation(draw_crop_boxes(box_key, sizes) * scale, flip < FLIPPED, *colors, grey < GREYED)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in: float32, or `dtype` if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def _normalise(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Normalise with ImageNet's statistics. They are not made a tensor: copying one to the device synchronises."""
    channels = zip(images.unbind(-3), MEAN, DEVIATION, strict=True)
    return torch.stack([((channel - mean) / deviation).to(dtype) for channel, mean, deviation in channels], -3)
