"""Layers that draw random numbers."""

import torch
from torch import Tensor, nn


class RandomLayer(nn.Module):
    """A layer whose training pass draws random numbers, all of them from its buffer ``key``.

    ``Problem.model`` fills the key in from the state, with another one for every step and layer. So the numbers are
    a function of the state, alone, under ``vmap``, in a CUDA graph and after a resume. Passes of one step draw the
    same ones; without an engine, so do all passes.
    """

    key: Tensor  # int64

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)


def key_buffers(network: nn.Module) -> tuple[str, ...]:
    """The names of the buffers that hold the keys of random layers."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, RandomLayer)]
    return tuple(f"{name}.key" if name else "key" for name in layers)
