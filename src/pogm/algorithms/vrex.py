"""Risk extrapolation."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class VREx(Algorithm):
    r"""Risk extrapolation (Krueger et al., 2021): the mean risk plus its variance over domains.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \operatorname{Var}(L_1, \dots, L_K)

    The weight :math:`\lambda_t` is 1 for ``penalty_anneal_iters`` steps; Adam starts afresh when it changes. The
    ``nll`` reported is the mean over domains (DomainBed reports the last domain's).
    """

    penalty: float = hyper(10.0, Power(10, -1, 5), least=0, draw_as="vrex_lambda")  # lambda
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="vrex_penalty_anneal_iters")

    def restart_at(self) -> int:
        """Adam forgets when the penalty gets its weight."""
        return self.penalty_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk plus its weighted variance."""
        risks = model.risks(batch)  # [K]
        risk, variance = risks.mean(), risks.var(correction=0)
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * variance, variance)
        return Loss(risk + weighted, {"nll": risk, "penalty": variance})
