"""PCGrad: trajectories projected to remove pairwise conflicts."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core import random
from pogm.core.state import State
from pogm.pareto.weightings import pcgrad_weights

ORDER = 2  # purpose of the random key; 0 and 1 are used for the copies


@dataclass(frozen=True)
class PCGrad(WeightedRounds):
    r"""Gradient surgery (Yu et al., 2020): remove from each trajectory its conflicts with the others, then average.

    .. math:: p_i \leftarrow p_i - \frac{\min(\langle p_i, h_j \rangle, 0)}{\|h_j\|^2} h_j
        \text{ for each } j \ne i, \qquad \theta \leftarrow \theta + \alpha \tfrac1K \sum_i p_i

    Each :math:`p_i` starts as :math:`h_i`; the :math:`h_j` are visited in a random order, drawn for each i. The paper
    combines gradients and sums the :math:`p_i`. This class combines trajectories and averages, so that without a
    conflict it equals Reptile.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of the projected trajectories, from inner products only."""
        orders = random.uniform(self.random_key(state, ORDER), (gram.shape[-1], gram.shape[-1])).argsort(-1)
        return pcgrad_weights(gram, orders)
