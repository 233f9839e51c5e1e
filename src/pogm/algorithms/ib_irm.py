"""IB-IRM: IRM with an information bottleneck."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.algorithms.penalties import feature_variance, scale_derivatives
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class IBIRM(Algorithm):
    r"""Information bottleneck IRM (Ahuja et al., NeurIPS 2021): IRM plus the variance of the features.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t P + \mu_t \tfrac1K \sum_k
        \operatorname{mean}_d \operatorname{Var}_b z_{k,b,d}, \qquad
        P = \tfrac1K \sum_k \frac{d}{ds} L_k^{\text{even}}(s f) \Big|_{s=1} \cdot
        \frac{d}{ds} L_k^{\text{odd}}(s f) \Big|_{s=1}

    P is the penalty of `IRM`, and the variance is that of `IBERM`. The weight :math:`\lambda_t` is 1 for the first
    ``penalty_anneal_iters`` steps and λ after them; :math:`\mu_t` is 0 for the first ``bottleneck_anneal_iters`` steps
    and μ after them. Adam is reset at both changes. With μ = 0 this is IRM, except for the second reset. The name in
    DomainBed is ``IB_IRM``. Differences from it: the derivatives are in closed form; the metric ``nll`` is the mean
    risk (there, it includes the penalties, because a sum is computed in place).

    Args:
        penalty: Weight λ of the penalty of IRM.
        penalty_anneal_iters: Number of steps in which this weight is 1.
        bottleneck: Weight μ of the variance.
        bottleneck_anneal_iters: Number of steps without the variance.
    """

    penalty: float = hyper(100.0, Power(10, -1, 5), least=0, draw_as="irm_lambda")  # λ
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="irm_penalty_anneal_iters")
    bottleneck: float = hyper(100.0, Power(10, -1, 5), least=0, draw_as="ib_lambda")  # μ
    bottleneck_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="ib_penalty_anneal_iters")

    def restart_at(self) -> tuple[int, int]:
        """Reset Adam when one of the weights changes."""
        return self.penalty_anneal_iters, self.bottleneck_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted penalty of IRM and the weighted variance of the features."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        variance = feature_variance(z)
        logits = over_samples(model.head, z)  # [K, B, C]
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()
        derivatives = scale_derivatives(logits, batch.y, model.loss)  # [K, B]
        penalty = (derivatives[:, 0::2].mean(1) * derivatives[:, 1::2].mean(1)).mean()  # P
        value = risk + torch.where(state.step >= self.penalty_anneal_iters, self.penalty * penalty, penalty)
        value = value + torch.where(state.step >= self.bottleneck_anneal_iters, self.bottleneck * variance, 0.0)
        return Loss(value, {"nll": risk, "penalty": penalty, "feature_variance": variance})
