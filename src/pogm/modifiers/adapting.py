"""Predictions that adapt to what is predicted."""

from functools import partial

from torch import Tensor
from torch.func import grad

from pogm.core.model import Model
from pogm.core.optimizers import Adam, Scalar
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import Predictor
from pogm.modifiers.twin import TWIN, Twin, affine, layers_of

MAPS = 5  # after each block


class Adapting:
    """Predicts the images of one domain and split, and learns maps from them on the way."""

    def __init__(self, weight: Scalar, predict: Predictor, model: Model):
        twin = model.network.get_submodule(TWIN)
        assert isinstance(twin, Twin)
        self.weight, self.predict, self.model, self.twin = weight, predict, model, twin
        self.optimizer = Adam(model.buffers[f"{TWIN}.rate"])
        self.maps: dict[str, Tensor] = {}  # shaped as what the blocks make of the first images
        self.moments: Tree = {}
        self.seen = 0  # batches

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of some images, after one step of the maps on them."""
        if not self.maps:
            self.maps = self._identity(x[:1])
            self.moments = self.optimizer.init(self.maps)
        gradient = grad(self._loss)(self.maps, x)
        self.maps, self.moments = self.optimizer.update(self.maps, gradient, self.moments)
        self.seen += 1
        with self.twin.changing(partial(mapped, self.maps)):
            return self.predict(x)

    def _loss(self, maps: Params, x: Tensor) -> Tensor:
        with self.twin.changing(partial(mapped, maps)):
            twin, z = self.model.part(TWIN)(x, self.seen), self.model.features(x)
        return self.weight * affine(layers_of(self.model.buffers), twin - z).square().mean()

    def _identity(self, x: Tensor) -> Params:
        maps: Params = {}

        def noted(place: int, output: Tensor) -> Tensor:
            maps[f"{place}.weight"] = x.new_ones(MAPS, *output.shape[1:])  # not output's type, which may be bfloat16
            maps[f"{place}.bias"] = x.new_zeros(MAPS, *output.shape[1:])
            return output

        with self.twin.changing(noted):
            self.model.features(x)
        return maps


def mapped(maps: Params, place: int, h: Tensor) -> Tensor:
    """The maps of one block; what is negative goes past them."""
    layers = {name: maps[f"{place}.{name}"] for name in ("weight", "bias")}
    return (affine(layers, h) + h.clamp(max=0)).to(h.dtype)
