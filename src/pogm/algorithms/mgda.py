"""MGDA: the shortest convex combination of the trajectories."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import mgda_weights


@dataclass(frozen=True)
class MGDA(WeightedRounds):
    r"""Multiple-gradient descent (Désidéri, 2012): the shortest vector in the convex hull of the trajectories.

    .. math:: \theta \leftarrow \theta + \alpha h_\pi, \qquad \pi = \arg\min_{\pi \in \Delta} \|h_\pi\|^2, \qquad
        \langle h_i, h_\pi \rangle \ge \|h_\pi\|^2 \text{ for all } i

    The limit of POGM's worst mixture for a large ball. The paper, and Sener and Koltun (2018), combine gradients; this
    class combines the trajectories. The quadratic program is solved exactly, not by the Frank-Wolfe method.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the convex combination of least norm."""
        return mgda_weights(gram)
