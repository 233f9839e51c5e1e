"""ConFIG: the direction with the same angle to all trajectories."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import config_weights


@dataclass(frozen=True)
class ConFIG(WeightedRounds):
    r"""Conflict-free inverse gradients (Liu et al., 2024): the direction with equal cosines to all trajectories.

    .. math:: \theta \leftarrow \theta + \alpha d, \qquad
        d = \tfrac1K \Big(\sum_i \langle h_i, \hat v \rangle\Big) \hat v, \qquad
        v = [\hat h_1, \dots, \hat h_K]^{-\top} 1

    A hat scales a vector to length 1, and the inverse is the pseudoinverse. If the trajectories are linearly
    independent, d has the same positive cosine with all of them. This is also the direction of `IMTLG`, up to its sign;
    only the length differs. The paper combines gradients and uses the sum of the projections as the length. This class
    combines trajectories and uses their mean, so that equal trajectories give that trajectory. Eigenvalues of the
    cosine matrix below 1e-12 of the largest count as zero. The variant with momentum (M-ConFIG) is not implemented.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of the direction with equal cosines."""
        return config_weights(gram)
