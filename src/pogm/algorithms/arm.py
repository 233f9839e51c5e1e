"""ARM: adaptive risk minimisation with a context network (ARM-CML)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm, MakeFeatures
from pogm.core.batch import Batch
from pogm.core.hyperparameters import MOST_SAMPLES, Large, hyper
from pogm.core.model import Model
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params

CONTEXT = "features.context."


@dataclass(frozen=True)
class ARM(Algorithm):
    r"""Adaptive risk minimisation (Zhang et al., 2021), ARM-CML: the mean context of a group of images is an input.

    .. math:: \tfrac1K \sum_k \ell(f(x_k, c_k), y_k), \qquad c_k = \tfrac1B \sum_b h(x_{k,b})

    A context network h maps each image to one channel; the mean over a group is an additional input channel of all
    images of the group. In training, a group is the minibatch of a domain. In prediction, it is ``support_size``
    consecutive images, or, if the number of images is not a multiple of it, all images that are predicted together
    (at most 64). Differences from DomainBed: it uses the batch size as the support size, with published batches of 64,
    and of 8 for large images; these are our defaults for every batch size (set ``batch_size`` to 8 for large images to
    reproduce it). It never trains the context network, by a mistake in its code (``train_context=False``).

    Args:
        support_size: Number of test images that share a context.
        train_context: Whether to train the context network.
    """

    support_size: int = hyper(64, large=Large(8), least=1, most=MOST_SAMPLES)
    train_context: bool = hyper(True)

    prediction_batch_size: ClassVar[int] = 64
    sees_at_test: ClassVar[str] = "the other images of the batch (64 of the test domain, unlabelled)"

    def featurizer(self, make: MakeFeatures, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return a featurizer with one more input channel, and a first stage that computes this channel."""
        features, width = make((shape[0] + 1, *shape[1:]))
        if not isinstance(features, nn.Sequential):
            raise UsageError(
                f"Expected a featurizer that is a sequence of stages, because ARM adds one; found "
                f"{type(features).__name__}. Choose another network."
            )
        stages = dict(features.named_children())
        for name in stages:
            delattr(features, name)
        for name, stage in {"context": Context(shape), **stages}.items():  # in place, to keep hooks and attributes
            features.add_module(name, stage)
        return features, width

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the usual state, or raise a `UsageError` if the network has no context network."""
        if not any(name.startswith(CONTEXT) for name in params):
            raise UsageError(
                "Expected a network with a context network, as ARM.featurizer() makes it; found one without. "
                "Train ARM as a trial, for example with pogm run."
            )
        return super().start(params, buffers, key, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk, with the context of each domain."""
        logits = model(batch.x).view(*batch.y.shape[:2], -1)  # [K, B, C]
        return Loss(model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean())

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update all weights, except the context network if ``train_context`` is false."""
        after, metrics = super().step(state, batches, problem)
        frozen = {n: leaf for n, leaf in state.params.items() if n.startswith(CONTEXT) and not self.train_context}
        return after._replace(params=after.params | frozen), metrics

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """Return the logits, with the context of each group."""
        divisible = len(x) % self.support_size == 0
        return model(x.reshape(-1, self.support_size, *x.shape[1:]) if divisible else x)


class Context(nn.Module):
    """Appends the mean context of a group as an additional channel to all images of the group.

    The input is groups of images [G, M, ...], or images [M, ...], which are one group. A vector is treated as an image
    of one pixel, and a time series as an image of one column: kernels have size 5 along the axes that the input has,
    and size 1 along the others.
    """

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.axes = len(shape)  # number of dimensions of an image
        height, width = (5 if self.axes > axis else 1 for axis in (1, 2))
        conv = partial(nn.Conv2d, kernel_size=(height, width), padding=(height // 2, width // 2))
        self.maps = nn.Sequential(
            *(conv(shape[0], 64), nn.BatchNorm2d(64), nn.ReLU()),
            *(conv(64, 64), nn.BatchNorm2d(64), nn.ReLU()),
            conv(64, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return images with the context, [G · M, channels + 1, ...]."""
        groups = x if x.ndim > 1 + self.axes else x[None]
        pooled = groups.flatten(0, 1)
        maps = self.maps(pooled.reshape(*pooled.shape, *[1] * (3 - self.axes)))
        maps = maps.view(*groups.shape[:2], 1, *groups.shape[3:])
        mean = maps.mean(1, keepdim=True).expand_as(maps)
        return torch.cat([groups, mean], dim=2).flatten(0, 1)
