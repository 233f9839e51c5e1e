"""The second branch of ITTA: the same featurizer, with mixed styles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pogm.core import random
from pogm.core.compilation import compiled
from pogm.core.model import Model, over_samples
from pogm.core.random_layers import RandomLayer
from pogm.core.trees import Params
from pogm.modifiers.base import check_head_takes
from pogm.modifiers.styles import mix_styles

TWIN = "twin"  # name of the part in the network
LAYERS = 10  # affine layers of A, the learned map in the consistency loss of `ITTA`

Change = Callable[[int, Tensor], Tensor]  # (index of a block, its output) -> new output


class Styles(NamedTuple):
    """Random mixtures of the styles of N images."""

    after_first: Tensor  # [] True: after block 0; False: after block 1
    share: Tensor  # [N] λ
    partner: Tensor  # [N] index of the partner of each image


class Twin(RandomLayer):
    """The second branch of a featurizer: it shares all weights and mixes styles after block 1 or block 2.

    Its buffers, which no algorithm trains, are A (weight and bias) and the learning rate of the maps that `ITTA` trains
    at test time.
    """

    alpha: Tensor
    rate: Tensor

    def __init__(self, features: nn.Module, blocks: tuple[str, ...], width: int, alpha: float):
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))  # known after the first step
        self.register_buffer("weight", torch.ones(LAYERS, width))
        self.register_buffer("bias", torch.zeros(LAYERS, width))
        self._features = (features,)  # in a tuple, so that its weights are not registered twice
        self._changes: tuple[Change, ...] = ()
        for index, block in enumerate(blocks):
            features.get_submodule(block).register_forward_hook(partial(self._apply_changes, index))

    def forward(self, x: Tensor, styles: Styles | None = None) -> Tensor:
        """Return z', with styles that are drawn from the key of the layer if none are given."""
        styles = draw_styles(random.fold(self.key, 0), self.alpha, len(x)) if styles is None else styles
        with self.change_outputs(partial(_mix, styles)):
            z: Tensor = self._features[0](x)
        return z

    @contextmanager
    def change_outputs(self, change: Change) -> Iterator[None]:
        """Apply a change to the outputs of the blocks inside the context, after changes that are already active."""
        before = self._changes
        self._changes = (*before, change)
        try:
            yield
        finally:
            self._changes = before

    def _apply_changes(self, index: int, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        for change in self._changes:
            output = change(index, output)
        return output


@compiled
def draw_styles(key: Tensor, alpha: Tensor, count: int) -> Styles:
    """Draw the block after which styles are mixed, each with probability one half, and the mixtures of some images."""
    after_first = random.uniform(random.fold(key, 0), ()) < 0.5
    share = random.beta(random.fold(key, 1), alpha, (count,))
    return Styles(after_first, share, random.permutation(random.fold(key, 2), count))


def _mix(styles: Styles, index: int, maps: Tensor) -> Tensor:
    """Mix styles after block 0 or block 1."""
    if index > 1:
        return maps
    is_here = styles.after_first if index == 0 else ~styles.after_first
    return torch.where(is_here, mix_styles(maps, styles.share, styles.partner), maps)


def both_features(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of both branches, z and z', [K, B, n] each."""
    z, twin = over_samples(model.features, x), over_samples(model.part(TWIN), x)
    check_head_takes(z, model.buffers[f"{TWIN}.weight"].shape[-1], "ITTA")
    return z, twin


def apply_affine(layers: Params, h: Tensor) -> Tensor:
    """Apply L elementwise affine layers, weight and bias [L, ...], with ReLU between them."""
    for layer in range(layers["weight"].shape[0]):
        h = layers["weight"][layer] * (h.relu() if layer else h) + layers["bias"][layer]
    return h


def consistency_layers(buffers: Params) -> Params:
    """Return the weights and biases of A, the learned map in the consistency loss."""
    return {name: buffers[f"{TWIN}.{name}"] for name in ("weight", "bias")}
