"""Affine transforms of images (rotation, shear, translation), one per image, with the results of torchvision.

An affine map [..., 2, 3] takes a position in the output image to a position in the input image. Positions are x (to the
right) and y (down) in pixels from the centre. Pixels from outside of the input are black.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def warp(images: Tensor, maps: Tensor, *, nearest: bool) -> Tensor:
    """Warp images [..., C, H, W] by affine maps [..., 2, 3], with nearest or bilinear interpolation."""
    height, width = images.shape[-2:]
    x = torch.arange(width, dtype=images.dtype, device=images.device) + 0.5 - width / 2
    y = torch.arange(height, dtype=images.dtype, device=images.device) + 0.5 - height / 2
    (xx, xy, x0), (yx, yy, y0) = (row.unbind(-1) for row in maps.to(images.dtype)[..., None, None, :, :].unbind(-2))
    across = (xx * x + xy * y[:, None] + x0) / (width / 2)  # [..., H, W], from -1 to 1 in the input image
    down = (yx * x + yy * y[:, None] + y0) / (height / 2)
    grid = torch.stack([across, down], -1).flatten(0, -4)
    flat = images.reshape(-1, *images.shape[-3:])
    mode = "nearest" if nearest else "bilinear"
    return F.grid_sample(flat, grid, mode=mode, padding_mode="zeros", align_corners=False).view(images.shape)


def affine_maps(angle: Tensor, shift_x: Tensor, shift_y: Tensor) -> Tensor:
    """Return the maps of a clockwise rotation about the centre (degrees), then a translation (pixels); all [...]."""
    radians = torch.deg2rad(angle)
    cos, sin = radians.cos(), radians.sin()
    first = torch.stack([cos, sin, -cos * shift_x - sin * shift_y], -1)
    second = torch.stack([-sin, cos, sin * shift_x - cos * shift_y], -1)
    return torch.stack([first, second], -2)


def shear_maps(shear_x: Tensor, shear_y: Tensor, height: int, width: int) -> Tensor:
    """Return the maps of a shear that keeps the top left corner; the shears [...] are tangents of the shear angles."""
    one = torch.ones_like(shear_x)
    first = torch.stack([one, shear_x, shear_x * (height / 2)], -1)
    second = torch.stack([shear_y, one, shear_y * (width / 2)], -1)
    return torch.stack([first, second], -2)
