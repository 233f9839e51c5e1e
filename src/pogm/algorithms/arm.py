"""ARM: adaptive risk minimisation with a context network."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm, MakeFeatures
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, hyper
from pogm.core.model import Model, cross_entropy
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params

CONTEXT = "features.context."


@dataclass(frozen=True)
class ARM(Algorithm):
    r"""Adaptive risk minimisation (Zhang et al., 2021), ARM-CML: images come with the context of their group.

    .. math:: \tfrac1K \sum_k \ell(f(x_k, c_k), y_k), \qquad c_k = \tfrac1B \sum_b h(x_{k,b})

    A context network h makes a map of every image; the mean map of a group is one more channel of its images. In
    training a group is a domain's minibatch. In prediction it is ``support_size`` images that come one after the
    other, or, if their number is not a multiple of that, all that are predicted together (64 at most). DomainBed takes
    the batch size for the support size; it publishes batches of 64, and of 8 for large images, and these are our
    defaults whatever the batch size is (set ``batch_size`` to 8 for large images as well). DomainBed never trains the
    context network, by mistake; without ``train_context`` neither do we.
    """

    support_size: int = hyper(64, large=Large(8), least=1)
    train_context: bool = hyper(True)

    predicts_by: ClassVar[int] = 64

    def featurizer(self, make: MakeFeatures, shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """A featurizer for one more channel, behind a first stage that adds it."""
        features, width = make((shape[0] + 1, *shape[1:]))
        if not isinstance(features, nn.Sequential):
            raise UsageError(
                f"Expected a featurizer that is a sequence of stages for ARM, which adds one; found "
                f"{type(features).__name__}. Choose another network."
            )
        stages = dict(features.named_children())
        for name in stages:
            delattr(features, name)
        for name, stage in {"context": Context(shape), **stages}.items():  # in place: all else about it stays
            features.add_module(name, stage)
        return features, width

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """The usual state, if there is a context network."""
        if not any(name.startswith(CONTEXT) for name in params):
            raise UsageError(
                "Expected a network with a context network, as ARM.featurizer() makes it; found one without. "
                "Train ARM as a trial, for example with pogm run."
            )
        return super().start(params, buffers, key, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk, given each domain's context."""
        logits = model(batch.x).view(*batch.y.shape[:2], -1)  # [K, B, C]
        return Loss(model.penalised(cross_entropy(logits, batch.y).mean(1), batch).mean())

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One step, of all weights or of all but the context network's."""
        after, metrics = super().step(state, batches, problem)
        kept = {n: leaf for n, leaf in state.params.items() if n.startswith(CONTEXT) and not self.train_context}
        return after._replace(params=after.params | kept), metrics

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """The logits, given the context of each group."""
        whole = len(x) % self.support_size == 0
        return model(x.reshape(-1, self.support_size, *x.shape[1:]) if whole else x)


class Context(nn.Module):
    """From images, or groups of them [G, M, ...], to all these images with the mean map of their group on top.

    Images without groups are one. A vector counts as an image of one pixel.
    """

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.axes = len(shape)  # of an image
        self.maps = nn.Sequential(
            *(nn.Conv2d(shape[0], 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.Conv2d(64, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU()),
            nn.Conv2d(64, 1, 5, padding=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[G · M, channels + 1, ...]."""
        groups = x if x.ndim > 1 + self.axes else x[None]
        pooled = groups.flatten(0, 1)
        maps = self.maps(pooled if self.axes > 1 else pooled[:, :, None, None])
        maps = maps.view(*groups.shape[:2], 1, *groups.shape[3:])
        mean = maps.mean(1, keepdim=True).expand_as(maps)
        return torch.cat([groups, mean], dim=2).flatten(0, 1)
