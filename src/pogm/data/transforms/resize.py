"""Antialiased bilinear resizing of one box per image, as two matrix products.

A resized row or column is a weighted sum of stored ones, so a resize is ``rows @ image @ columns.T``. The weights are
the triangle filter of Pillow and torchvision: as wide as an output pixel, but at least as wide as a stored pixel.
"""

import torch
from torch import Tensor


def resize(images: Tensor, size: int) -> Tensor:
    """Resize float images [..., C, H, W] to [..., C, size, size], without keeping the aspect ratio."""
    height, width = images.shape[-2:]
    start = torch.zeros(1, dtype=torch.float64, device=images.device)
    rows = _weights(start, start + height, size, height, images.dtype)
    columns = _weights(start, start + width, size, width, images.dtype)
    return rows @ (images @ columns.mT)


def resized_crop(images: Tensor, box: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Crop a box from each of the float images [..., C, H, W] and resize it to [..., C, size, size].

    Args:
        images: Images.
        box: [..., 4] top, left, height and width in pixels, possibly fractional. Pixels outside have no weight, as if
            the image had been cropped first; pixels on the edge have the weight of their part inside.
        size: Height and width of the result.
        flip: [...] images to flip horizontally. This costs nothing: only the order of the column weights changes.
    """
    height, width = images.shape[-2:]
    top, left, tall, wide = box.to(torch.float64).unsqueeze(-2).unbind(-1)  # [..., 1] each
    rows = _weights(top, tall, size, height, images.dtype)
    columns = _weights(left, wide, size, width, images.dtype, flip)
    across = images.flatten(-3, -2) @ columns.mT  # channels as additional rows, so the weights are not repeated
    return rows.unsqueeze(-3) @ across.reshape(*images.shape[:-1], size)


def _weights(
    start: Tensor, length: Tensor, size: int, stored: int, dtype: torch.dtype, flip: Tensor | None = None
) -> Tensor:
    """Return the weight of each stored pixel for each resized pixel: [..., size, stored], rows with sum 1."""
    centre = (torch.arange(size, dtype=torch.float64, device=start.device) + 0.5) / size  # [size] within the box
    if flip is not None:
        centre = torch.where(flip.unsqueeze(-1), 1 - centre, centre)
    pixel = torch.arange(stored, dtype=torch.float64, device=start.device)  # [stored]
    inside = torch.minimum(pixel + 1, start + length) - torch.maximum(pixel, start)  # [..., stored]
    support = (length / size).clamp(min=1)
    # Vectors are float64 up to here. The matrices are not, because of their memory and time.
    centre = ((start + centre * length) / support).to(dtype).unsqueeze(-1)
    pixel = ((pixel + 0.5) / support).to(dtype).unsqueeze(-2)
    weights = (1 - (pixel - centre).abs()).clamp(min=0) * inside.clamp(0, 1).to(dtype).unsqueeze(-2)
    return weights / weights.sum(-1, keepdim=True)
