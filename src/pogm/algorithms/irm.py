"""Invariant risk minimisation, in its practical form IRMv1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, cross_entropy, over_samples, probabilities
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class IRM(Algorithm):
    r"""Invariant risk minimisation (Arjovsky et al., 2019): no domain gains by scaling the logits.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \tfrac1K \sum_k
        \frac{d}{ds} L_k^{\text{even}}(s f) \Big|_{s=1} \cdot \frac{d}{ds} L_k^{\text{odd}}(s f) \Big|_{s=1}

    The two halves of a minibatch make the product an unbiased estimate of the squared slope, which may be negative.
    The weight :math:`\lambda_t` is 1 for ``penalty_anneal_iters`` steps; Adam starts afresh when it changes. This is
    DomainBed's, but that the slopes have a closed form.
    """

    penalty: float = hyper(100.0, Power(10, -1, 5), least=0, draw_as="irm_lambda")  # lambda
    penalty_anneal_iters: int = hyper(500, Power(10, 0, 4, integer=True), least=0, draw_as="irm_penalty_anneal_iters")

    def restart_at(self) -> int:
        """Adam forgets when the penalty gets its weight."""
        return self.penalty_anneal_iters

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk plus the mean product of slopes."""
        if batch.x.shape[1] < 2:
            raise UsageError(
                "Expected minibatches of at least 2 samples for IRM, which compares their halves; found 1. "
                "Raise batch_size."
            )
        logits = over_samples(model, batch.x)  # [K, B, C]
        risk = model.penalised(cross_entropy(logits, batch.y).mean(1), batch).mean()
        slopes = scale_slopes(logits, batch.y)  # [K, B]
        penalty = (slopes[:, 0::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * penalty, penalty)
        return Loss(risk + weighted, {"nll": risk, "penalty": penalty})


def scale_slopes(logits: Tensor, y: Tensor) -> Tensor:
    """The derivative of every sample's cross-entropy by a factor of its logits, at 1, in closed form: [K, B]."""
    return ((logits.softmax(-1) - probabilities(y, logits.shape[-1])) * logits).sum(-1)
