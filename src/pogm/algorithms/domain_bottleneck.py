"""Base class of CAD and CondCAD: a contrastive bottleneck for the domain."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State

BASE_TEMPERATURE = 0.07  # τ₀


@dataclass(frozen=True)
class DomainBottleneck(Algorithm):
    """Contrastive bottleneck for the domain of a sample; a subclass defines which samples are compared.

    Args:
        penalty: Weight λ of the bottleneck.
        temperature: Temperature τ of the contrastive distribution.
        normalized: Whether to scale the features to length 1 in the bottleneck.
        flipped: Whether to increase the probability of other domains instead of decreasing that of the same domain.
    """

    abstract: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True  # the mean is over samples whose class occurs twice

    penalty: float = hyper(0.1, Choice(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2), least=0, draw_as="lmbda")  # λ
    temperature: float = hyper(0.1, Choice(0.05, 0.1), above=0)  # τ
    normalized: bool = hyper(False)
    flipped: bool = hyper(True)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted bottleneck."""
        if batch.y.is_floating_point():
            raise UsageError(
                f"Expected labels that are classes, because {type(self).__name__} compares samples of one class; found "
                "probabilities, as Mixup makes them. Leave the modifier out."
            )
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        bottleneck = self.bottleneck(z, batch.y)
        return Loss(risk + self.penalty * bottleneck, {"nll": risk, "penalty": bottleneck})

    def bottleneck(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the mean of B_i; z is [K, B, n] and y [K, B]."""
        domains = torch.arange(z.shape[0], device=z.device).repeat_interleave(z.shape[1])
        z, y = z.flatten(0, 1), y.flatten()
        z = normalize(z, dim=1) if self.normalized else z
        others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)  # j ≠ i
        same_class = (y.unsqueeze(1) == y) & others
        same_domain = (domains.unsqueeze(1) == domains) & others
        among = self.candidates(others, same_class)
        counted = among & (others & ~same_domain if self.flipped else same_domain)
        valid = same_class.any(1) & counted.any(1)  # samples i
        logits = z @ z.mT / self.temperature
        log_share = masked_logsumexp(logits, counted, valid) - masked_logsumexp(logits, among, valid)
        sign = -1 if self.flipped else 1
        mean = torch.where(valid, log_share, 0.0).sum() / valid.sum().clamp(min=1)
        result: Tensor = sign * self.temperature / BASE_TEMPERATURE * mean
        return result

    def candidates(self, others: Tensor, same_class: Tensor) -> Tensor:
        """Return which samples j are in the distribution of sample i, [N, N]: by default all others."""
        return others


def masked_logsumexp(logits: Tensor, mask: Tensor, valid: Tensor) -> Tensor:
    """Return log Σ_j exp(logits_ij) over the j in a mask, [N]. Rows that are not valid sum over all j."""
    kept = mask | ~valid.unsqueeze(1)  # an empty sum would have an undefined gradient
    return logits.masked_fill(~kept, -torch.inf).logsumexp(1)
