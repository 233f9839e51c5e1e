"""The second branch of a featurizer: the same weights, another style."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from pogm.core import random
from pogm.core.model import Model, over_samples
from pogm.core.random_layers import RandomLayer
from pogm.core.trees import Params
from pogm.modifiers.base import check_head_takes
from pogm.modifiers.styles import restyled

TWIN = "twin"  # what the network calls it
LAYERS = 10  # of the consistency A

Change = Callable[[int, Tensor], Tensor]  # of the output of the block with that number


class Twin(RandomLayer):
    """The second branch of a featurizer: the same weights, and styles that are mixed after one of the first blocks.

    It also holds A and the maps' learning rate, as buffers: no algorithm moves these.
    """

    alpha: Tensor
    rate: Tensor

    def __init__(self, features: nn.Module, blocks: tuple[str, ...], width: int, alpha: float):
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))  # known after the first round
        self.register_buffer("weight", torch.ones(LAYERS, width))
        self.register_buffer("bias", torch.zeros(LAYERS, width))
        self._features = (features,)  # in a tuple, or its weights would have a second name
        self._changes: tuple[Change, ...] = ()
        for place, block in enumerate(blocks):
            features.get_submodule(block).register_forward_hook(partial(self._changed, place))

    def forward(self, x: Tensor, number: int = 0) -> Tensor:
        """z', with other random numbers for every number."""
        with self.changing(partial(self._mixed, random.fold(self.key, number))):
            z: Tensor = self._features[0](x)
        return z

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        """Change what comes out of the featurizer's blocks, for a while, after what is being changed already."""
        before = self._changes
        self._changes = (*before, change)
        try:
            yield
        finally:
            self._changes = before

    def _changed(self, place: int, block: nn.Module, inputs: tuple[Tensor, ...], maps: Tensor) -> Tensor:
        for change in self._changes:
            maps = change(place, maps)
        return maps

    def _mixed(self, key: Tensor, place: int, maps: Tensor) -> Tensor:
        if place > 1:
            return maps
        count = maps.shape[0]
        first = random.uniform(random.fold(key, 0), ()) < 0.5
        share = random.beta(random.fold(key, 1), self.alpha, (count,))
        partner = random.permutation(random.fold(key, 2), count)
        return torch.where(first if place == 0 else ~first, restyled(maps, share, partner), maps)


def branches(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """The features of both branches, z and z': [K, B, n] each."""
    z, twin = over_samples(model.features, x), over_samples(model.part(TWIN), x)
    check_head_takes(z, model.buffers[f"{TWIN}.weight"].shape[-1], "ITTA")
    return z, twin


def affine(layers: Params, h: Tensor) -> Tensor:
    """Elementwise affine layers, weight and bias [L, ...], with ReLUs between them."""
    for layer in range(layers["weight"].shape[0]):
        h = layers["weight"][layer] * (h.relu() if layer else h) + layers["bias"][layer]
    return h


def layers_of(buffers: Params) -> Params:
    """A."""
    return {name: buffers[f"{TWIN}.{name}"] for name in ("weight", "bias")}
