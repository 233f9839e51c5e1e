"""PCGrad: trajectories without their conflicts."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core import random
from pogm.core.state import State
from pogm.pareto.weightings import pcgrad_weights

ORDER = 2  # the purpose of its random numbers; 0 and 1 are those of the copies


@dataclass(frozen=True)
class PCGrad(WeightedRounds):
    r"""Gradient surgery (Yu et al., 2020): each trajectory loses what it has against the others; then their mean.

    .. math:: p_i \leftarrow p_i - \frac{\min(\langle p_i, h_j \rangle, 0)}{\|h_j\|^2} h_j
        \text{ for each } j \ne i, \qquad \theta \leftarrow \theta + \alpha \tfrac1K \sum_i p_i

    Each :math:`p_i` starts as :math:`h_i` and meets the others in a random order of its own. The paper combines
    gradients and adds the :math:`p_i` up; here it is the trajectories of POGM, and their mean, so that without a
    conflict this is Reptile.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """What is left of the domains, from their inner products alone."""
        orders = random.uniform(self.random_key(state, ORDER), (gram.shape[-1], gram.shape[-1])).argsort(-1)
        return pcgrad_weights(gram, orders)
