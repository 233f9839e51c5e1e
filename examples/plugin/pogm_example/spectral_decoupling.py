"""SpectralDecoupling: an algorithm of another package."""

from dataclasses import dataclass

from pogm.algorithms import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class SpectralDecoupling(Algorithm):
    r"""Spectral decoupling (Pezeshki et al., 2021): the mean risk plus a penalty on the size of the logits.

    .. math:: \tfrac1K \sum_k L_k + \lambda \operatorname{mean} f(x)^2

    Args:
        penalty: Weight λ of the squared logits.
    """

    penalty: float = hyper(0.1, Power(10, -5, -1), least=0)  # λ; the search space of DomainBed

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted penalty; one pass through the features serves both."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        squared = over_samples(model.head, z).square().mean()
        return Loss(risk + self.penalty * squared, {"nll": risk, "penalty": squared})
