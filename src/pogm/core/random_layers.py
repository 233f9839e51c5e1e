"""Layers that draw random numbers from a key: the base class, and dropout."""

import torch
from torch import Tensor, nn

from pogm.core import random


class RandomLayer(nn.Module):
    """Layer that draws random numbers in training, all of them from its buffer ``key``.

    ``Problem.model`` sets the key from the state, a different one for every step and layer. The random numbers are
    therefore a function of the state: they are the same in a loop, under ``vmap``, in a CUDA graph and after a resume.
    All passes of one step draw the same numbers. Without an engine, all passes do.
    """

    key: Tensor  # int64

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)


def key_buffers(network: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that hold the keys of random layers."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, RandomLayer)]
    return tuple(f"{name}.key" if name else "key" for name in layers)


class Dropout(RandomLayer):
    r"""Dropout (Srivastava et al., 2014): :math:`z_j / (1 - p)` with probability :math:`1 - p`, else 0.

    The mask is a function of the key. The rate p is a buffer, so trials with different rates can be batched.
    """

    rate: Tensor  # p
    first: Tensor | None  # index of the first sample in the whole pass, if the layer gets only a part of its samples

    def __init__(self, rate: float = 0.0):
        super().__init__()
        self.register_buffer("first", None)
        self.register_buffer("rate", torch.tensor(rate, dtype=torch.float64), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """Apply dropout in training mode; return the inputs unchanged in evaluation mode."""
        if not self.training:
            return z
        key = self.key if self.first is None else random.skip(self.key, self.first * z[0].numel())
        kept = random.uniform(key, tuple(z.shape)) >= self.rate
        return z * (kept / (1 - self.rate)).to(z.dtype)


def set_dropout(network: nn.Module, rate: float) -> None:
    """Set the rate of every dropout layer of the network."""
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.rate.fill_(rate)
