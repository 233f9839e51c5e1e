"""IB-ERM: ERM with an information bottleneck, a penalty on the variance of the features."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.algorithms.penalties import feature_variance
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class IBERM(Algorithm):
    r"""Information bottleneck ERM (Ahuja et al., NeurIPS 2021): the mean risk plus the variance of the features.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \tfrac1K \sum_k
        \operatorname{mean}_d \operatorname{Var}_b z_{k,b,d}

    The variance (denominator B − 1) of each feature over the samples of a domain bounds the entropy of the features.
    The weight :math:`\lambda_t` is 0 for the first ``penalty_anneal_iters`` steps and λ after them; Adam is reset when
    it changes. With λ = 0 this is ERM, except for the reset. The name in DomainBed is ``IB_ERM``. Difference from it:
    the metric ``nll`` is the mean risk (there, it includes the penalty, because a sum is computed in place).

    Args:
        penalty: Weight λ of the variance.
        penalty_anneal_iters: Number of steps without the penalty.
    """

    penalty: float = hyper(100.0, Power(10, -1, 5), least=0, draw_as="ib_lambda")  # λ
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="ib_penalty_anneal_iters")

    def restart_at(self) -> int:
        """Reset Adam when the penalty starts."""
        return self.penalty_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted variance of the features."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        variance = feature_variance(z)
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * variance, 0.0)
        return Loss(risk + weighted, {"nll": risk, "penalty": variance})
