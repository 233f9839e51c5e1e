"""UPGrad: trajectories projected so that they conflict with no domain, then averaged."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import upgrad_weights


@dataclass(frozen=True)
class UPGrad(WeightedRounds):
    r"""Unconflicting projections of gradients (Quinton and Rey, 2024): project each trajectory, then average.

    .. math:: \theta \leftarrow \theta + \alpha \tfrac1K \sum_i p_i, \qquad
        p_i = \arg\min_{p \,:\, \langle h_j, p \rangle \ge 0 \;\forall j} \|p - h_i\|

    PCGrad removes conflicts one by one, so a later projection can create an earlier conflict again. Here every
    :math:`p_i` has a nonnegative inner product with all trajectories. The paper combines gradients; this class combines
    trajectories. The projections are exact; the authors' code adds a small multiple of the identity to the Gramian.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of the mean of the projections onto the cone {d : h_j·d ≥ 0 for all j}."""
        return upgrad_weights(gram)
