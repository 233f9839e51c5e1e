"""SelfReg: self-supervised contrastive regularisation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params

PROJECTION = "projection."
FEATURE_WEIGHT = 0.3  # of distances of features, relative to those of logits
WIDE = 2048  # features of a ResNet-50, whose projection has hidden layers of the same width


@dataclass(frozen=True)
class SelfReg(Algorithm):
    r"""Self-supervised contrastive regularisation (Kim et al., ICCV 2021): samples of one class have equal outputs.

    With random permutations π and ρ of the samples within each class, logits f, features z, a projection h and one
    :math:`\lambda \sim \operatorname{Beta}(\tfrac12, \tfrac12)` per step:

    .. math:: L + \min(L, 1) \big[ \lambda D(\pi) + (1 - \lambda) D(\lambda \pi + (1 - \lambda) \rho) \big], \qquad
        D(\cdot) = \operatorname{mse}(f, f_\cdot) + 0.3 \operatorname{mse}(z, h(z)_\cdot), \qquad
        L = \tfrac1K \sum_k L_k

    where :math:`f_\pi` are the permuted logits and :math:`f_{\lambda \pi + (1 - \lambda) \rho}` their mixture. No
    gradient flows through the factor min(L, 1). A permutation can map a sample to itself. As in DomainBed, there is no
    weight averaging and no curriculum of domains, which the paper adds. Differences from DomainBed: the optimizer there
    does not contain the projection, so that it keeps its random weights (``train_projection=False``); no bias before
    batch norm, which would remove it.

    Args:
        train_projection: Whether to train the projection h.
    """

    needs_classes: ClassVar[bool] = True  # samples are permuted within their classes

    train_projection: bool = hyper(True)

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Add the projection to the network: three linear layers with batch norm."""
        head, inner = nn.Linear(width, num_classes), width if width == WIDE else 2 * width
        layers: list[nn.Module] = []
        for size_in, size_out in ((width, inner), (inner, inner)):
            layers += [nn.Linear(size_in, size_out, bias=False), nn.BatchNorm1d(size_out), nn.ReLU()]
        return Network(
            features,
            head,
            projection=nn.Sequential(*layers, nn.Linear(inner, width, bias=False), nn.BatchNorm1d(width)),
        )

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the usual state, or raise a `UsageError` if the network has no projection."""
        if not any(name.startswith(PROJECTION) for name in params):
            raise UsageError(
                "Expected a network with a projection, as SelfReg.build() makes it; found one without. "
                "Train SelfReg as a trial, for example with pogm run."
            )
        return super().start(params, buffers, key, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the distances between samples of one class."""
        if batch.y.is_floating_point():
            raise UsageError(
                "Expected labels that are classes, because SelfReg compares samples of one class; found "
                "probabilities, as Mixup makes them. Leave the modifier out."
            )
        z = over_samples(model.features, batch.x)  # [K, B, n]
        logits = over_samples(model.head, z)
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()  # L

        share = random.beta(self.random_key(state, 0), 0.5, ()).to(z.dtype)  # λ
        first, second = (draw_class_permutation(batch.y.flatten(), self.random_key(state, i)) for i in (1, 2))  # π, ρ
        z, logits = z.flatten(0, 1), logits.flatten(0, 1)
        distances = []  # D(π), D(λ π + (1 − λ) ρ)
        pairs = ((logits, logits, 1.0), (z, model.part("projection")(z), FEATURE_WEIGHT))
        for mixed in (False, True):
            total = torch.zeros_like(risk)
            for own, others, weight in pairs:
                partner = others.index_select(0, first)
                partner = share * partner + (1 - share) * others.index_select(0, second) if mixed else partner
                total = total + weight * (own - partner).square().mean()
            distances.append(total)
        penalty = share * distances[0] + (1 - share) * distances[1]
        return Loss(risk + risk.detach().clamp(max=1) * penalty, {"nll": risk, "penalty": penalty})

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update all weights, except the projection if ``train_projection`` is false."""
        after, metrics = super().step(state, batches, problem)
        fixed = {n: leaf for n, leaf in state.params.items() if n.startswith(PROJECTION) and not self.train_projection}
        return after._replace(params=after.params | fixed), metrics


def draw_class_permutation(y: Tensor, key: Tensor) -> Tensor:
    """Draw for each sample another sample of its class, [N]: a uniformly random permutation within every class."""
    ordered = y.argsort(stable=True)  # grouped by class
    shuffled = (y + random.uniform(key, (len(y),))).argsort()  # grouped by class, in random order within it
    return torch.zeros_like(ordered).scatter(0, ordered, shuffled)
