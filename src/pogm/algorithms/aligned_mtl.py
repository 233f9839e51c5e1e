"""Aligned-MTL: the mean of trajectories that are made orthogonal and equally long."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.hyperparameters import hyper
from pogm.core.state import State
from pogm.pareto.weightings import aligned_mtl_weights


@dataclass(frozen=True)
class AlignedMTL(WeightedRounds):
    r"""Independent component alignment (Senushkin et al., 2023): average trajectories after making them orthogonal.

    .. math:: \theta \leftarrow \theta + \alpha \tfrac1K \sum_i \tilde h_i, \qquad
        [\tilde h_1, \dots, \tilde h_K] = \sqrt{\sigma} \, H (H^\top H)^{-1/2}, \qquad H = [h_1, \dots, h_K]

    The aligned :math:`\tilde h_i` are the orthogonal vectors of length √σ that are nearest to the trajectories, so d
    has the same positive inner product with all :math:`\tilde h_i`; that with a trajectory :math:`h_i` can be negative.
    In the paper, σ is the smallest eigenvalue of :math:`H^\top H`: the step is short if two trajectories are nearly
    parallel. The authors' code can also use the mean eigenvalue (``scale="rmse"``) or the median, which is left out
    here. Differences from the code: it combines gradients, and this class trajectories; it sums the aligned vectors,
    and this class takes their mean; it leaves out eigenvalues below K · 1.2e-7 of the largest, and this class those
    below 1e-12, because inner products are computed in float64.

    Args:
        scale: Choice of σ: "min" for the smallest eigenvalue, "rmse" for the mean eigenvalue.
    """

    scale: str = hyper("min", options=("min", "rmse"))

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of the mean of the aligned trajectories."""
        return aligned_mtl_weights(gram, self.scale)
