"""UPGrad: every trajectory made harmless, then their mean."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State
from pogm.pareto.weightings import upgrad_weights


@dataclass(frozen=True)
class UPGrad(WeightedRounds):
    r"""Jacobian descent by unconflicting projections (Quinton and Rey, 2024): each trajectory made harmless; the mean.

    .. math:: \theta \leftarrow \theta + \alpha \tfrac1K \sum_i p_i, \qquad
        p_i = \arg\min_{p \,:\, \langle h_j, p \rangle \ge 0 \;\forall j} \|p - h_i\|

    PCGrad takes the conflicts one by one, and what it repairs with one domain it may break with another; here no
    domain has anything against any :math:`p_i`. The paper combines gradients; here it is the trajectories of POGM.
    The projections are exact, where the authors' code adds a small multiple of the identity to the inner products.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """The mean of the projections on the cone that hurts no domain."""
        return upgrad_weights(gram)
