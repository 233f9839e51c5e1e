"""GroupDRO: group distributionally robust optimisation."""

import math
from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class GroupDRO(Algorithm):
    r"""Group distributionally robust optimisation (Sagawa et al., 2020): give more weight to domains with larger risk.

    .. math:: q_k \leftarrow \frac{q_k e^{\eta L_k}}{\sum_j q_j e^{\eta L_j}}, \qquad \sum_k q_k L_k

    The weights q are updated before the loss of the same step is computed, and no gradient flows through them.
    Differences from DomainBed: we store log q, which cannot overflow and never rounds a weight to zero; it is part of
    the state, so a resumed run continues with it (DomainBed loses it). All domains share one forward pass, which
    matters for batch norm that is not frozen. The tables of DomainBed of 2020 were made with this loss divided by K,
    which hardly matters with Adam.

    Args:
        eta: Step size η of the weights.
    """

    eta: float = hyper(1e-2, Power(10, -3, -1), least=0, draw_as="groupdro_eta")

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with equal weights."""
        equal = next(iter(params.values())).new_full((problem.num_domains,), -math.log(problem.num_domains))
        return super().start(params, buffers, key, problem)._replace(memory={"log_weights": equal})

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the risk under the updated weights."""
        risks = model.risks(batch)  # [K]
        log_weights = (state.memory["log_weights"] + self.eta * risks.detach()).log_softmax(0)
        weights = log_weights.exp()  # q
        return Loss(weights @ risks, {"nll": risks.mean(), "weights": weights}, {"log_weights": log_weights})
