"""Base class of CausIRL with the distances of CORAL and MMD: match two random mixtures of the domains."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class CausIRL(Algorithm):
    """Match the features of two random mixtures of the domains; a subclass defines the distance.

    Args:
        penalty: Weight γ of the distance.
    """

    abstract: ClassVar[bool] = True

    penalty: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mmd_gamma")  # γ

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted distance of the two mixtures."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        first = split_samples(self.random_key(state), *z.shape[:2]).flatten()
        masks = torch.stack([first, ~first]).to(z.dtype)  # [2, K · B]
        enough = (masks.sum(1) > 1).all()
        distance = torch.where(enough, self.distance(z.flatten(0, 1), masks), 0.0)
        return Loss(risk + self.penalty * distance, {"nll": risk, "penalty": distance})

    def distance(self, z: Tensor, masks: Tensor) -> Tensor:
        """Return the distance of two groups of samples; z is [N, n], and masks [2, N] are 1 at members of a group."""
        raise NotImplementedError


def split_samples(key: Tensor, domains: int, samples: int) -> Tensor:
    """Return which samples belong to the first mixture, [K, B]: the first s_k of domain k, s_k from {0, …, B − 1}."""
    sizes = (random.uniform(key, (domains, 1)) * samples).long()
    return torch.arange(samples, device=key.device) < sizes
