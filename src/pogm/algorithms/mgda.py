"""MGDA: the shortest mixture of the domains' trajectories."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import mgda_weights


@dataclass(frozen=True)
class MGDA(WeightedRounds):
    r"""Multiple-gradient descent (Désidéri, 2012): the shortest vector between the trajectories, which none opposes.

    .. math:: \theta \leftarrow \theta + \alpha h_\pi, \qquad \pi = \arg\min_{\pi \in \Delta} \|h_\pi\|^2, \qquad
        \langle h_i, h_\pi \rangle \ge \|h_\pi\|^2 \text{ for all } i

    Where POGM's ball is so large that its centre no longer matters, POGM's worst mixture is this one. The paper, and
    Sener and Koltun (2018), combine gradients; here it is the trajectories of POGM. The quadratic program is solved
    exactly, not by Frank and Wolfe's method.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """The mixture of least norm."""
        return mgda_weights(gram)
