"""Layers that networks share: frozen batch norm, a nonlinear classifier, and layers that compile to faster code."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pogm._system.errors import UsageError

FEW_CHANNELS = 4  # input channels up to which `Im2colConv2d` is faster than cuDNN
ALIGNED = 16  # row length, in numbers, that matrix units read efficiently
HAS_TRITON = find_spec("triton") is not None


def freeze_batch_norm(network: nn.Module) -> None:
    """Keep all batch-norm layers in evaluation mode, also after ``network.train()``.

    Their scale and shift are trained like other weights. Their running statistics never change.
    """
    for layer in network.modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, _Frozen):
            kind: Any = type(layer)
            layer.__class__ = _frozen_class(kind)  # change the layer itself, so that it stays frozen in other networks
            layer.eval()


class _Frozen:
    """Mixin for a batch-norm class that stays in evaluation mode."""

    def train(self: Any, mode: bool = True) -> Any:
        """Stay in evaluation mode."""
        return super().train(False)  # type: ignore[misc]


@cache
def _frozen_class(kind: Any) -> Any:
    return type(f"Frozen{kind.__name__}", (_Frozen, kind), {})


def build_nonlinear_classifier(linear: nn.Module) -> nn.Sequential:
    """Build DomainBed's nonlinear classifier: three linear layers with ReLU, each half as wide as the one before.

    Args:
        linear: The linear classifier to replace; the new one has the same inputs and outputs.

    Raises:
        UsageError: If the classifier is not linear.
    """
    if not isinstance(linear, nn.Linear):
        raise UsageError(
            f"Expected an algorithm with a linear classifier for nonlinear_classifier; found {type(linear).__name__}. "
            "Leave nonlinear_classifier off."
        )
    width, classes = linear.in_features, linear.out_features
    half, quarter = max(width // 2, 1), max(width // 4, 1)
    return nn.Sequential(
        nn.Linear(width, half),
        nn.ReLU(),
        nn.Linear(half, quarter),
        nn.ReLU(),
        nn.Linear(quarter, classes),
    )


class Im2colConv2d(nn.Conv2d):
    """Convolution for few input channels, computed as a matrix product (im2col) when it is compiled for a GPU.

    cuDNN is optimised for many channels and pads few channels with zeros. With two channels, it takes longer than the
    other three convolutions of the MNIST CNN together. The compiler fuses the extraction of patches with the padding.
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution, as `forward` of the base class calls it. Both ways are equal up to rounding."""
        multiplies = x.is_cuda and torch.compiler.is_compiling()
        return self.convolve_patches(x, weight, bias) if multiplies else super()._conv_forward(x, weight, bias)

    def convolve_patches(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply patches [N, positions, channels · height · width] with the weights."""
        (stride,) = set(self.stride)
        padding, kernel = int(self.padding[0]), self.kernel_size[0]
        shape = [(size + 2 * padding - kernel) // stride + 1 for size in x.shape[-2:]]
        patches = F.unfold(x, kernel, padding=padding, stride=stride).transpose(1, 2)
        missing = (0, -patches.shape[-1] % ALIGNED)
        result = F.linear(F.pad(patches, missing), F.pad(weight.flatten(1), missing), bias)
        return result.transpose(1, 2).reshape(len(x), -1, *shape)


class ConvBlock(nn.Sequential):
    """Convolution, ReLU and group norm.

    When it is compiled for a GPU, one Triton kernel computes the bias of the convolution, ReLU and group norm.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.GroupNorm):
        super().__init__(conv, nn.ReLU(), norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised features. Both ways are equal up to rounding."""
        is_compiled = x.is_cuda and torch.compiler.is_compiling() and HAS_TRITON
        if is_compiled and x.dtype in (torch.float32, torch.bfloat16):
            return self.fused(x)
        conv, relu, norm = self
        result: Tensor = norm(relu(conv(x)))
        return result

    def fused(self, x: Tensor) -> Tensor:
        """Compute the block with the kernel, or without it if the kernel does not support the sizes."""
        conv: Any = self[0]
        norm: Any = self[2]
        x = conv._conv_forward(x, conv.weight, None)
        if not _supports(norm.num_channels, norm.num_groups):
            unfused: Tensor = norm(F.relu(x + conv.bias[:, None, None]))
            return unfused
        from pogm.core.relu_group_norm import relu_group_norm  # imports Triton

        fused: Tensor = relu_group_norm(x, conv.bias, norm.weight, norm.bias, norm.num_groups, norm.eps)
        return fused


def _supports(channels: int, groups: int) -> bool:
    """Return True if the kernel can normalise images with these numbers of channels."""
    return all(number & (number - 1) == 0 for number in (channels, groups))
