"""IRM: invariant risk minimisation, in its practical form IRMv1."""

from dataclasses import dataclass

import torch

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.algorithms.penalties import scale_derivatives
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class IRM(Algorithm):
    r"""Invariant risk minimisation (Arjovsky et al., 2019): penalise dL_k/ds for a scale s of the logits.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \tfrac1K \sum_k
        \frac{d}{ds} L_k^{\text{even}}(s f) \Big|_{s=1} \cdot \frac{d}{ds} L_k^{\text{odd}}(s f) \Big|_{s=1}

    "Even" and "odd" are the two halves of a minibatch. Their product is an unbiased estimate of the squared derivative;
    it can be negative. The weight :math:`\lambda_t` is 1 for the first ``penalty_anneal_iters`` steps and λ after them;
    Adam is reset when it changes. The only difference from DomainBed is that the derivatives are in closed form.

    Args:
        penalty: Weight λ of the penalty.
        penalty_anneal_iters: Number of steps with weight 1.
    """

    penalty: float = hyper(100.0, Power(10, -1, 5), least=0, draw_as="irm_lambda")  # λ
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="irm_penalty_anneal_iters")

    def restart_at(self) -> int:
        """Reset Adam when the weight changes from 1 to λ."""
        return self.penalty_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted penalty."""
        if batch.y.shape[1] < 2:
            raise UsageError(
                "Expected minibatches of at least 2 samples for IRM, which compares their halves; found 1. "
                "Raise batch_size."
            )
        logits = over_samples(model, batch.x)  # [K, B, C]
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()
        derivatives = scale_derivatives(logits, batch.y, model.loss)  # [K, B]
        penalty = (derivatives[:, 0::2].mean(1) * derivatives[:, 1::2].mean(1)).mean()
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * penalty, penalty)
        return Loss(risk + weighted, {"nll": risk, "penalty": penalty})
