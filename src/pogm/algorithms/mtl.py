"""Marginal transfer learning: a classifier that also sees what its domain looks like."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples
from pogm.core.problem import Problem
from pogm.core.random_layers import RandomLayer
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class MTL(Algorithm):
    r"""Marginal transfer learning (Blanchard et al., 2021): the head sees a domain's mean features beside each image's.

    .. math:: \sum_k \ell(g(z_k, e_k), y_k), \qquad e_k \leftarrow a \bar z_k + (1 - a) e_k

    The gradient flows through this step's share of :math:`e_k`, and the risks are summed. An image of an unknown
    domain is predicted with the mean features of the images it comes with. Domains share one pass, where DomainBed's
    have one each: with live batch norm they differ. DomainBed puts standard normal numbers in
    the place of every :math:`e_k`, in training and in prediction, and so has published ERM with noisy inputs;
    ``compat_noise`` reproduces it, with the same numbers for every 64 images of an evaluation.
    """

    ema: float = hyper(0.99, Choice(0.5, 0.9, 0.99, 1.0), least=0, most=1, draw_as="mtl_ema")  # a
    compat_noise: bool = hyper(False)

    predicts_by: ClassVar[int] = 64

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """A head for the features and as many numbers again."""
        embedding = Noise() if self.compat_noise else MeanFeatures()
        return MarginalNetwork(features, nn.Linear(2 * width, num_classes), embedding=embedding)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Embeddings of zero."""
        if not isinstance(problem.network, MarginalNetwork):
            raise UsageError(
                "Expected a network whose head also takes a domain's mean features, as MTL.build() makes it; found "
                "one of another kind. Train MTL as a trial, for example with pogm run."
            )
        head = next(leaf for name, leaf in params.items() if name.startswith("head."))
        embeddings = head.new_zeros(problem.num_domains, head.shape[1] // 2)
        return super().start(params, buffers, key, problem)._replace(memory={"embeddings": embeddings})

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The sum of the risks, given each domain's embedding."""
        if self.compat_noise:
            return Loss(model.risks(batch).sum())
        z = over_samples(model.features, batch.x)  # [K, B, n]
        embeddings = self.ema * z.mean(1) + (1 - self.ema) * state.memory["embeddings"]  # e_k
        both = torch.cat([z, embeddings[:, None].expand_as(z)], dim=2)
        losses = cross_entropy(over_samples(model.head, both), batch.y)
        risks = model.penalised(losses.mean(1), batch)
        return Loss(risks.sum(), memory={"embeddings": embeddings.detach()})


class MarginalNetwork(Network):
    """A network whose head sees features and an embedding; called plainly, that of the images it is called with."""

    def forward(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        """The logits; or what one part makes of its inputs."""
        if part is not None:
            return super().forward(*inputs, part=part)
        z = self.features(*inputs)
        logits: Tensor = self.head(torch.cat([z, self.get_submodule("embedding")(z)], dim=1))
        return logits


class MeanFeatures(nn.Module):
    """The mean of the features, for every image."""

    def forward(self, z: Tensor) -> Tensor:
        """As many rows as there are images, all the same."""
        return z.mean(0).expand_as(z)


class Noise(RandomLayer):
    """Standard normal numbers instead; in evaluation too."""

    def forward(self, z: Tensor) -> Tensor:
        """As many as there are features, each its own."""
        return random.normal(self.key, tuple(z.shape)).to(z.dtype)
