"""A convolution of images with few channels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 4
ALIGNED = 16  # numbers in a row that a matrix unit wants to read


class FewChannels(nn.Conv2d):
    """A convolution that is a product of matrices where it is compiled for a GPU.

    cuDNN is made for many channels and fills few of them up with zeros: with two, it takes longer than the three
    convolutions of the MNIST CNN after it. The compiler cuts the patches out of the image as it makes the matrix.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers up to rounding, either way."""
        return self.by_product(x) if x.is_cuda and torch.compiler.is_compiling() else super().forward(x)

    def by_product(self, x: Tensor) -> Tensor:
        """Patches [N, positions, channels · height · width] times weights."""
        (stride,) = set(self.stride)
        padding, kernel = int(self.padding[0]), self.kernel_size[0]
        shape = [(size + 2 * padding - kernel) // stride + 1 for size in x.shape[-2:]]
        patches = F.unfold(x, kernel, padding=padding, stride=stride).transpose(1, 2)
        missing = (0, -patches.shape[-1] % ALIGNED)
        result = F.linear(F.pad(patches, missing), F.pad(self.weight.flatten(1), missing), self.bias)
        return result.transpose(1, 2).reshape(len(x), -1, *shape)
