"""IMTL-G: the combination of the trajectories with equal projections onto all of them."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import imtlg_weights


@dataclass(frozen=True)
class IMTLG(WeightedRounds):
    r"""Impartial multi-task learning, IMTL-G (Liu et al., 2021): equal projections onto all trajectories.

    .. math:: \theta \leftarrow \theta + \alpha d, \qquad d = \sum_i c_i h_i, \qquad
        \langle d, \hat h_i \rangle = \langle d, \hat h_j \rangle \text{ for all } i, j, \qquad \sum_i c_i = 1

    A hat scales a vector to length 1. Weights can be negative. If trajectories conflict, d can be very long, and it
    can point away from all trajectories. Both happen if the sum of the weights, before it is scaled to 1, is close to
    zero. `ConFIG` has the same direction without these two effects. The paper combines gradients with respect to shared
    features, and its second part (IMTL-L) scales the losses. This class combines trajectories and has no second part.
    The paper inverts a matrix. For linearly dependent trajectories this class uses the pseudoinverse of the cosine
    matrix; TorchJD uses that of the Gramian.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights with equal projections."""
        return imtlg_weights(gram)
