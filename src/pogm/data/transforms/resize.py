"""Antialiased bilinear resizing of a box of every image, as two matrix products.

A resized row or column is a weighted sum of stored ones, so a resize is ``rows @ image @ columns.T``. The weights are
Pillow's triangle filter, which torchvision uses too: as wide as an output pixel, but never narrower than a stored one.
"""

import torch
from torch import Tensor


def resize(images: Tensor, size: int) -> Tensor:
    """Whole images [..., C, H, W], floats, as [..., C, size, size]; their aspect is not kept."""
    height, width = images.shape[-2:]
    start = torch.zeros(1, dtype=torch.float64, device=images.device)
    rows = _weights(start, start + height, size, height, images.dtype)
    columns = _weights(start, start + width, size, width, images.dtype)
    return rows @ (images @ columns.mT)


def resized_crop(images: Tensor, box: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """The part in a box of each of the images [..., C, H, W], floats, as [..., C, size, size].

    ``box`` [..., 4] is (top, left, height, width) in pixels. Those outside of it count for nothing, as if the image had
    been cut first; those on its edge count for the part of them inside. Where ``flip`` [...], left and right change
    places: this costs nothing, as the columns are only asked for in the other order.
    """
    height, width = images.shape[-2:]
    top, left, tall, wide = box.to(torch.float64).unsqueeze(-2).unbind(-1)  # [..., 1] each
    rows = _weights(top, tall, size, height, images.dtype)
    columns = _weights(left, wide, size, width, images.dtype, flip)
    across = images.flatten(-3, -2) @ columns.mT  # channels as more rows: the weights are not repeated for each
    return rows.unsqueeze(-3) @ across.reshape(*images.shape[:-1], size)


def _weights(
    start: Tensor, length: Tensor, size: int, stored: int, dtype: torch.dtype, flip: Tensor | None = None
) -> Tensor:
    """How much each of the stored pixels counts for each of the resized: [..., size, stored], each row with sum 1."""
    centre = (torch.arange(size, dtype=torch.float64, device=start.device) + 0.5) / size  # [size] within the box
    if flip is not None:
        centre = torch.where(flip.unsqueeze(-1), 1 - centre, centre)
    pixel = torch.arange(stored, dtype=torch.float64, device=start.device)  # [stored]
    inside = torch.minimum(pixel + 1, start + length) - torch.maximum(pixel, start)  # [..., stored]
    support = (length / size).clamp(min=1)
    # What has one axis is float64 until here; the matrices themselves, which cost memory and time, are not.
    centre = ((start + centre * length) / support).to(dtype).unsqueeze(-1)
    pixel = ((pixel + 0.5) / support).to(dtype).unsqueeze(-2)
    weights = (1 - (pixel - centre).abs()).clamp(min=0) * inside.clamp(0, 1).to(dtype).unsqueeze(-2)
    return weights / weights.sum(-1, keepdim=True)
