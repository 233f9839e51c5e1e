"""MTL: marginal transfer learning, a classifier with the mean features of the domain as an input."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.problem import Problem
from pogm.core.random_layers import RandomLayer
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class MTL(Algorithm):
    r"""Marginal transfer learning (Blanchard et al., 2021): the mean features of the domain are an input of the head.

    .. math:: \sum_k \ell(g(z_k, e_k), y_k), \qquad e_k \leftarrow a \bar z_k + (1 - a) e_k

    The gradient flows through the new part :math:`a \bar z_k` of :math:`e_k`. The risks are summed, not averaged. An
    image of an unknown domain is predicted with the mean features of the images that are predicted together with it.
    Differences from DomainBed: it replaces every :math:`e_k` by standard normal numbers, in training and in prediction,
    by a mistake in its code, so its published results are those of ERM with noisy inputs (``compat_noise=True``
    reproduces it, with the same numbers for every 64 images of an evaluation). All domains share one forward pass,
    which matters for batch norm that is not frozen.

    Args:
        ema: Weight a of the current minibatch in the mean features.
        compat_noise: Whether to replace the mean features by noise, as in DomainBed.
    """

    ema: float = hyper(0.99, Choice(0.5, 0.9, 0.99, 1.0), least=0, most=1, draw_as="mtl_ema")  # a
    compat_noise: bool = hyper(False)

    prediction_batch_size: ClassVar[int] = 64
    sees_at_test: ClassVar[str] = "the other images of the batch (64 of the test domain, unlabelled)"

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Return a network whose head takes the features and an embedding of the same size."""
        embedding = Noise() if self.compat_noise else MeanFeatures()
        return MarginalNetwork(features, nn.Linear(2 * width, num_classes), embedding=embedding)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with embeddings e_k of zero."""
        if not isinstance(problem.network, MarginalNetwork):
            raise UsageError(
                "Expected a network whose head takes the mean features of a domain, as MTL.build() makes it; found "
                "another network. Train MTL as a trial, for example with pogm run."
            )
        head = next(leaf for name, leaf in params.items() if name.startswith("head."))
        embeddings = head.new_zeros(problem.num_domains, head.shape[1] // 2)
        return super().start(params, buffers, key, problem)._replace(memory={"embeddings": embeddings})

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the sum of the risks, with the embedding of each domain."""
        if self.compat_noise:
            return Loss(model.risks(batch).sum())
        z = over_samples(model.features, batch.x)  # [K, B, n]
        embeddings = self.ema * z.mean(1) + (1 - self.ema) * state.memory["embeddings"]  # e_k
        both = torch.cat([z, embeddings[:, None].expand_as(z)], dim=2)
        losses = model.loss(over_samples(model.head, both), batch.y)
        risks = model.add_penalties(losses.mean(1), batch)
        return Loss(risks.sum(), memory={"embeddings": embeddings.detach()})


class MarginalNetwork(Network):
    """A network whose head takes features and an embedding, which is computed from the images of the same call."""

    def forward(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        """Return the logits, or the output of one part."""
        if part is not None:
            return super().forward(*inputs, part=part)
        z = self.features(*inputs)
        logits: Tensor = self.head(torch.cat([z, self.get_submodule("embedding")(z)], dim=1))
        return logits


class MeanFeatures(nn.Module):
    """The mean of the features over the images."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the mean as one row per image."""
        return z.mean(0).expand_as(z)


class Noise(RandomLayer):
    """Standard normal numbers instead of the mean features, in training and in evaluation."""

    def forward(self, z: Tensor) -> Tensor:
        """Return noise in the shape of the features."""
        return random.normal(self.key, tuple(z.shape)).to(z.dtype)
