"""Dropout whose masks come from a key."""

import torch
from torch import Tensor, nn

from pogm.core import random
from pogm.core.random_layers import RandomLayer


class Dropout(RandomLayer):
    r"""Dropout (Srivastava et al., 2014): :math:`z_j / (1 - p)` with probability :math:`1 - p`, else 0.

    The mask is a function of the layer's key. The rate p is a buffer, so that trials with different ones share a batch.
    """

    rate: Tensor  # p

    def __init__(self, rate: float = 0.0):
        super().__init__()
        self.register_buffer("rate", torch.tensor(rate, dtype=torch.float64), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """The inputs, some of them zero; all of them as they are in evaluation."""
        if not self.training:
            return z
        kept = random.uniform(self.key, tuple(z.shape)) >= self.rate
        return z * (kept / (1 - self.rate)).to(z.dtype)


def set_dropout(network: nn.Module, rate: float) -> None:
    """Give the network's dropout that rate, where it has one."""
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.rate.fill_(rate)
