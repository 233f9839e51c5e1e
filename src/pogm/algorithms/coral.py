"""CORAL: match the mean and the covariance of the features across domains."""

from dataclasses import dataclass

from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class CORAL(Algorithm):
    r"""Deep CORAL (Sun and Saenko, 2016): match the mean and the covariance of the features across domains.

    .. math:: \tfrac1K \sum_k L_k + \gamma \tfrac{2}{K (K-1)} \sum_{i<j} \Big[
        \operatorname{mean}_d (m_i - m_j)_d^2 + \operatorname{mean}_{d,d'} (C_i - C_j)_{dd'}^2 \Big]

    with the mean :math:`m_k` and the covariance :math:`C_k` (denominator B − 1) of the features. The paper aligns the
    covariances of two domains; the term with the means and the mean over all pairs are from DomainBed. The mean over
    pairs of a squared difference equals twice the variance over domains, which is what the code computes. With one
    domain this is ERM. Differences from DomainBed: all domains share one forward pass, which matters for batch norm
    that is not frozen; the metric ``loss`` is the whole objective and ``nll`` its first term (DomainBed reports the
    first term as the loss).

    Args:
        penalty: Weight γ of the distance between domains.
    """

    penalty: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mmd_gamma")  # γ

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted distance between the moments of the domains."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        distance = moment_distance(z)
        return Loss(risk + self.penalty * distance, {"nll": risk, "penalty": distance})


def moment_distance(z: Tensor) -> Tensor:
    """Return the mean over pairs of domains of the squared distance of their means and covariances; z is [K, B, n]."""
    domains, samples = z.shape[:2]
    if domains == 1:
        return z.new_zeros(())
    if samples < 2:
        raise UsageError(
            f"Expected minibatches of at least 2 samples for CORAL, which computes covariances; found {samples}. "
            "Raise batch_size."
        )
    means = z.mean(1, keepdim=True)  # [K, 1, n]
    covariances = (z - means).mT @ (z - means) / (samples - 1)  # [K, n, n]
    return 2 * (means.var(0).mean() + covariances.var(0).mean())
