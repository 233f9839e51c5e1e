"""Test-time adaptation of ITTA: affine maps that are trained on the test images."""

from functools import partial

from torch import Tensor
from torch.func import grad

from pogm.core import random
from pogm.core.model import Model
from pogm.core.optimizers import Adam, Scalar
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import Predictor
from pogm.modifiers.twin import TWIN, Styles, Twin, apply_affine, consistency_layers, draw_styles

MAPS = 5  # affine maps after each block


class AdaptingPredictor:
    """Predictor for the images of one domain and split. It trains affine maps on each batch before predicting it."""

    def __init__(self, weight: Scalar, predict: Predictor, model: Model):
        twin = model.network.get_submodule(TWIN)
        assert isinstance(twin, Twin)
        self.weight, self.predict, self.model, self.twin = weight, predict, model, twin
        self.optimizer = Adam(model.buffers[f"{TWIN}.rate"])
        self.maps: dict[str, Tensor] = {}  # affine maps, shaped like the outputs of the blocks; set by the first batch
        self.moments: Tree = {}
        self.batches = 0  # number of batches so far

    def __call__(self, x: Tensor) -> Tensor:
        """Take one step of the maps on the images, then return their logits."""
        if not self.maps:
            self.maps = self._identity(x[:1])
            self.moments = self.optimizer.init(self.maps)
        key, alpha = (self.model.buffers[f"{TWIN}.{name}"] for name in ("key", "alpha"))
        styles = draw_styles(random.fold(key, self.batches), alpha, len(x))  # before `grad`, where it can be compiled
        gradient = grad(self._loss)(self.maps, x, styles)
        self.maps, self.moments = self.optimizer.update(self.maps, gradient, self.moments)
        self.batches += 1
        with self.twin.change_outputs(partial(apply_maps, self.maps)):
            return self.predict(x)

    def _loss(self, maps: Params, x: Tensor, styles: Styles) -> Tensor:
        with self.twin.change_outputs(partial(apply_maps, maps)):
            twin, z = self.model.part(TWIN)(x, styles), self.model.features(x)
        return self.weight * apply_affine(consistency_layers(self.model.buffers), twin - z).square().mean()

    def _identity(self, x: Tensor) -> Params:
        """Return affine maps that are the identity, with the shapes of the block outputs."""
        maps: Params = {}

        def create(block: int, output: Tensor) -> Tensor:
            maps[f"{block}.weight"] = x.new_ones(MAPS, *output.shape[1:])  # dtype of x: the output may be bfloat16
            maps[f"{block}.bias"] = x.new_zeros(MAPS, *output.shape[1:])
            return output

        with self.twin.change_outputs(create):
            self.model.features(x)
        return maps


def apply_maps(maps: Params, block: int, h: Tensor) -> Tensor:
    """Apply the affine maps of a block to its output; negative values are not changed."""
    layers = {name: maps[f"{block}.{name}"] for name in ("weight", "bias")}
    return (apply_affine(layers, h) + h.clamp(max=0)).to(h.dtype)
