"""SD: spectral decoupling, a penalty on the size of the logits."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State


@dataclass(frozen=True)
class SD(Algorithm):
    r"""Spectral decoupling (Pezeshki et al., NeurIPS 2021): the mean risk plus the mean square of the logits.

    .. math:: \tfrac1K \sum_k L_k + \lambda \operatorname{mean}_{k, b, c} f_c(x_{k,b})^2

    Large logits saturate the softmax, and then features that are learned late get almost no gradient (gradient
    starvation). The penalty replaces weight decay, but acts on the outputs. With λ = 0 this is ERM. As in DomainBed,
    the penalty is the mean over logits; in the paper it is half of the sum over the logits of a sample. Difference from
    DomainBed: the metric ``loss`` is the whole objective and ``nll`` its first term (DomainBed reports the first term
    as the loss).

    Args:
        penalty: Weight λ of the mean square.
    """

    penalty: float = hyper(0.1, Power(10, -5, -1), least=0, draw_as="sd_reg")  # λ

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted mean square of the logits."""
        logits = over_samples(model, batch.x)  # [K, B, C]
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()
        square = logits.square().mean()
        return Loss(risk + self.penalty * square, {"nll": risk, "penalty": square})
