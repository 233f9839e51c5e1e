"""VREx: risk extrapolation."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class VREx(Algorithm):
    r"""Risk extrapolation (Krueger et al., 2021): the mean risk plus the variance of the risks over domains.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \operatorname{Var}(L_1, \dots, L_K)

    The weight :math:`\lambda_t` is 1 for the first ``penalty_anneal_iters`` steps and λ after them; Adam is reset when
    it changes. Difference from DomainBed: the metric ``nll`` is the mean over domains, not the value of the last
    domain.

    Args:
        penalty: Weight λ of the variance.
        penalty_anneal_iters: Number of steps with weight 1.
    """

    penalty: float = hyper(10.0, Power(10, -1, 5), least=0, draw_as="vrex_lambda")  # λ
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="vrex_penalty_anneal_iters")

    def restart_at(self) -> int:
        """Reset Adam when the weight changes from 1 to λ."""
        return self.penalty_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted variance."""
        risks = model.risks(batch)  # [K]
        risk, variance = risks.mean(), risks.var(correction=0)
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * variance, variance)
        return Loss(risk + weighted, {"nll": risk, "penalty": variance})
