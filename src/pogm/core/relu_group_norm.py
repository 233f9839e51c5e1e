"""Bias, ReLU and group norm of images as one Triton kernel, for the forward and for the backward pass.

With r = max(x + bias, 0), the output is (r − mean) / √(variance + eps) · scale + shift, where mean and variance are
those of a group of channels in one image. The compiler makes several kernels of this, which read the image again each
time. Here a program reads some channels of one image twice: the first time for the sums, and the second time, from the
cache, for the output. Images are in the channels-last format, so that the channels of a position are adjacent in
memory. Sums are in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 64  # channels of a program: 128 bytes in bfloat16
NUMBERS = 2048  # values that a program reads at once
WARPS = 4
ROWS = 256  # images that are summed at once


@torch.library.custom_op("pogm::relu_group_norm", mutates_args=())
def relu_group_norm(x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
    """Return the group norm of max(x + bias, 0) for images x [N, C, H, W], in the type of x.

    Args:
        x: Images.
        bias: Bias [C] that is added first.
        scale: Scale [C] of the normalised values.
        shift: Shift [C] of the normalised values.
        groups: Number of groups of channels.
        eps: Added to the variances.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(x)
    grid, sizes = _divide(x, groups)
    forward_kernel[grid](x, bias, scale, shift, out, eps, *sizes, num_warps=WARPS)
    return out


@relu_group_norm.register_fake
def _(x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@torch.library.custom_op("pogm::relu_group_norm_backward", mutates_args=())
def relu_group_norm_backward(
    gradient: Tensor, x: Tensor, bias: Tensor, scale: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `relu_group_norm` with respect to x, and to bias, scale and shift as [3, C]."""
    x, gradient = (images.contiguous(memory_format=torch.channels_last) for images in (x, gradient))
    of_x = torch.empty_like(x)
    of_images = torch.empty((len(x), 3, x.shape[1]), dtype=torch.float32, device=x.device)
    of_others = torch.empty_like(of_images[0])
    grid, sizes = _divide(x, groups)
    backward_kernel[grid](gradient, x, bias, scale, of_x, of_images, eps, *sizes, num_warps=WARPS)
    columns = of_others.numel()
    sum_kernel[(triton.cdiv(columns, 16),)](of_images, of_others, len(x), columns, ROWS, 16)
    return of_x, of_others


@relu_group_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, bias: Tensor, scale: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=torch.channels_last)
    return of_x, x.new_empty((3, x.shape[1]), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, scale, _, ctx.groups, ctx.eps = inputs
    ctx.save_for_backward(x, bias, scale)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_x, (of_bias, of_scale, of_shift) = relu_group_norm_backward(gradient, *ctx.saved_tensors, ctx.groups, ctx.eps)
    return of_x, of_bias, of_scale, of_shift, None, None


relu_group_norm.register_autograd(_differentiate, setup_context=_keep)


def _divide(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, int, int, int, int]]:
    """Return the grid of programs, and the sizes that a kernel needs."""
    count, channels, height, width = x.shape
    size = channels // groups
    part = min(max(CHANNELS, size), channels)
    rows = max(min(NUMBERS // part, triton.next_power_of_2(height * width)), 1)
    return (count, channels // part), (height * width, channels, size, rows, part)


@triton.jit
def _rectify(x, bias):
    values = x.to(tl.float32) + bias
    return tl.where(values < 0, 0.0, values)  # a NaN stays one


@triton.jit
def _group_means(means, size: tl.constexpr, part: tl.constexpr):
    """Return for each channel [part] the mean of its group, from the means of the channels."""
    of_groups = tl.sum(tl.reshape(means, (part // size, size)), 1) / size
    return tl.reshape(tl.broadcast_to(of_groups[:, None], (part // size, size)), (part,))


@triton.jit
def _statistics(sums, squares, eps, positions: tl.constexpr, size: tl.constexpr, part: tl.constexpr):
    """Return the mean and 1 / deviation of the group of each channel, from the sums of r − pivot and of its square.

    The pivot is close to the mean, so that a variance that is small beside the mean keeps its digits.
    """
    mean = _group_means(sums / positions, size, part)
    variance = _group_means(squares / positions, size, part) - mean * mean
    return mean, 1 / tl.sqrt(tl.maximum(variance, 0.0) + eps)


@triton.jit
def forward_kernel(
    x,
    bias,
    scale,
    shift,
    out,
    eps,
    positions: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    part: tl.constexpr,
):
    """Normalise some channels of one image."""
    channel = tl.program_id(1) * part + tl.arange(0, part)
    start = tl.program_id(0).to(tl.int64) * positions * channels + channel
    row = tl.arange(0, rows)[:, None]
    added = tl.load(bias + channel).to(tl.float32)
    pivot = _group_means(_rectify(tl.load(x + start), added), size, part)
    sums = tl.zeros((rows, part), tl.float32)
    squares = tl.zeros((rows, part), tl.float32)
    for first in range(0, positions, rows):
        inside = first + row < positions
        given = tl.load(x + start[None, :] + (first + row) * channels, mask=inside, other=0.0)
        distance = tl.where(inside, _rectify(given, added[None, :]) - pivot[None, :], 0.0)
        sums += distance
        squares += distance * distance
    mean, inverse = _statistics(tl.sum(sums, 0), tl.sum(squares, 0), eps, positions, size, part)
    factor = inverse * tl.load(scale + channel).to(tl.float32)
    offset = tl.load(shift + channel).to(tl.float32)
    for first in range(0, positions, rows):
        inside = first + row < positions
        where = start[None, :] + (first + row) * channels
        distance = _rectify(tl.load(x + where, mask=inside, other=0.0), added[None, :]) - pivot[None, :]
        result = (distance - mean[None, :]) * factor[None, :] + offset[None, :]
        tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    gradient,
    x,
    bias,
    scale,
    of_x,
    of_images,
    eps,
    positions: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    part: tl.constexpr,
):
    """Compute the gradients of some channels of one image: of x, and its share of those of bias, scale and shift."""
    channel = tl.program_id(1) * part + tl.arange(0, part)
    start = tl.program_id(0).to(tl.int64) * positions * channels + channel
    row = tl.arange(0, rows)[:, None]
    added = tl.load(bias + channel).to(tl.float32)
    pivot = _group_means(_rectify(tl.load(x + start), added), size, part)
    sums = tl.zeros((rows, part), tl.float32)
    squares = tl.zeros((rows, part), tl.float32)
    outer_sums = tl.zeros((rows, part), tl.float32)
    products = tl.zeros((rows, part), tl.float32)
    for first in range(0, positions, rows):
        inside = first + row < positions
        where = start[None, :] + (first + row) * channels
        outer = tl.load(gradient + where, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(x + where, mask=inside, other=0.0)
        distance = tl.where(inside, _rectify(given, added[None, :]) - pivot[None, :], 0.0)
        sums += distance
        squares += distance * distance
        outer_sums += outer
        products += outer * distance
    mean, inverse = _statistics(tl.sum(sums, 0), tl.sum(squares, 0), eps, positions, size, part)
    of_shift = tl.sum(outer_sums, 0)
    of_scale = (tl.sum(products, 0) - mean * of_shift) * inverse
    weight = tl.load(scale + channel).to(tl.float32)
    level = _group_means(weight * of_shift / positions, size, part)
    slope = _group_means(weight * of_scale / positions, size, part)
    of_bias = tl.zeros((rows, part), tl.float32)
    for first in range(0, positions, rows):
        inside = first + row < positions
        where = start[None, :] + (first + row) * channels
        outer = tl.load(gradient + where, mask=inside, other=0.0).to(tl.float32)
        rectified = _rectify(tl.load(x + where, mask=inside, other=0.0), added[None, :])
        normalised = (rectified - pivot[None, :] - mean[None, :]) * inverse[None, :]
        inner = (outer * weight[None, :] - level[None, :] - normalised * slope[None, :]) * inverse[None, :]
        inner = tl.where(inside, tl.where(rectified <= 0, 0.0, inner), 0.0)
        tl.store(of_x + where, inner.to(of_x.dtype.element_ty), mask=inside)
        of_bias += inner
    of_image = of_images + tl.program_id(0).to(tl.int64) * 3 * channels + channel
    tl.store(of_image, tl.sum(of_bias, 0))
    tl.store(of_image + channels, of_scale)
    tl.store(of_image + 2 * channels, of_shift)


@triton.jit
def sum_kernel(x, out, count, columns, rows: tl.constexpr, part: tl.constexpr):
    """Sum some columns of x [count, columns] over the rows, always in the same order."""
    column = tl.program_id(0) * part + tl.arange(0, part)
    row = tl.arange(0, rows)[:, None]
    total = tl.zeros((rows, part), tl.float32)
    for first in range(0, count, rows):
        inside = (first + row < count) & (column[None, :] < columns)
        total += tl.load(x + (first + row).to(tl.int64) * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < columns)
