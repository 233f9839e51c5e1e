"""TENT: minimise the entropy of the predictions on test images, by the scales and shifts of normalization layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.func import grad
from torch.nn.modules.batchnorm import _BatchNorm

from pogm._system.errors import UsageError
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.model import Model, Network
from pogm.core.optimizers import Adam, Scalar
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import ONLINE, Modifier, Predictor

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class TENT(Modifier):
    r"""Test entropy minimisation (Wang et al., 2021): adapt scales and shifts of normalization layers to test images.

    .. math:: (\gamma, \beta) \leftarrow \operatorname{Adam}\Big((\gamma, \beta),
        \nabla \tfrac1B \sum_{b=1}^B H(p(x_b; \gamma, \beta))\Big), \qquad H(p) = -\sum_c p_c \log p_c

    Each batch of 64 test images is predicted with the current γ and β; then they take one step on the entropy of these
    predictions, which changes the prediction of the next batch, as in the authors' code. They are reset for each
    domain and split. Training does not change. Batch-norm layers that were trained with the statistics of minibatches
    use those of the test batch, as in the paper (the stored ones for a batch of one image). Frozen batch-norm layers
    (``freeze_bn``, the default for pretrained networks) keep the statistics with which they were trained, and only
    their γ and β adapt; the code of Iwasawa and Matsuo (2021) for DomainBed uses the statistics of the test batch there
    too. Group norm and layer norm need no statistics. The learning rate is that of the authors for small images; its
    range is our choice.

    Args:
        adaptation_lr: Learning rate of Adam at test time.
    """

    adaptation_lr: float = hyper(1e-3, Choice(1e-4, 1e-3, 1e-2), above=0, draw_as="tent_lr")

    needs_classes: ClassVar[bool] = True
    needs_network: ClassVar[str] = "normalization layers"
    prediction_batch_size: ClassVar[int] = 64
    sees_at_test: ClassVar[str] = ONLINE
    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")
    changes_training: ClassVar[bool] = False

    def network(self, network: Network) -> Network:
        """Check that the network has a normalization layer with scale and shift that its predictions use."""
        if not affine_names(network):
            raise UsageError(
                "Expected a network with normalization layers that have a scale and a shift, for TENT; found none. "
                "Choose a network with batch norm, group norm or layer norm, for example --set network=mnist_cnn, or "
                "leave TENT out."
            )
        return network

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """Return a predictor that takes one step on the entropy after each batch."""
        return EntropyMinimising(self.adaptation_lr, predict, model)


class EntropyMinimising:
    """Predictor for the images of one domain and split, with the adapted scales and shifts."""

    def __init__(self, lr: Scalar, predict: Predictor, model: Model):
        self.predict, self.model, self.optimizer = predict, model, Adam(lr)
        self.affine: Params = {name: model.params[name] for name in affine_names(model.network)}
        self.moments: Tree = self.optimizer.init(self.affine)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of the images, then take one step on their entropy."""
        before = self.model.params
        try:
            with batch_statistics(self.model.network, len(x)):
                gradient, logits = grad(self._entropy, has_aux=True)(self.affine, x)
        finally:
            self.model.params = before
        self.affine, self.moments = self.optimizer.update(self.affine, gradient, self.moments)
        result: Tensor = logits
        return result

    def _entropy(self, affine: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        self.model.params = {**self.model.params, **affine}
        logits = self.predict(x)
        logs = logits.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1).mean(), logits


def affine_names(network: nn.Module) -> list[str]:
    """Return the names of scales and shifts of the normalization layers of the featurizer and the head."""
    return [
        f"{name}.{member}"
        for name, layer in network.named_modules()
        if isinstance(layer, NORMS) and name.partition(".")[0] in ("features", "head")
        for member, _ in layer.named_parameters(recurse=False)
    ]


@contextmanager
def batch_statistics(network: nn.Module, count: int) -> Iterator[None]:
    """Let batch-norm layers that are not frozen use the statistics of the batch, without storing them.

    A frozen layer overrides `train`. One image has no statistics: a batch of one uses the stored ones.
    """
    layers: list[Any] = [
        layer
        for layer in network.modules()
        if isinstance(layer, _BatchNorm) and type(layer).train is nn.Module.train and count > 1
    ]
    modes = [(layer.training, layer.track_running_stats) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.track_running_stats = True, False
        yield
    finally:
        for layer, (training, tracks) in zip(layers, modes, strict=True):
            layer.training, layer.track_running_stats = training, tracks
