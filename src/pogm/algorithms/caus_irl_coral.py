"""CausIRL with the distance of CORAL."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.caus_irl import CausIRL


@dataclass(frozen=True)
class CausIRLCORAL(CausIRL):
    r"""CausIRL with CORAL (Chevalley et al., 2022): match the moments of the features of two mixtures of domains.

    Every step divides the minibatch of each domain k at a random place :math:`s_k \in \{0, \dots, B - 1\}`. The first
    parts of all domains are one group, the second parts another:

    .. math:: \tfrac1K \sum_k L_k + \gamma \Big[ \operatorname{mean}_d (m_1 - m_2)_d^2
        + \operatorname{mean}_{d,d'} (C_1 - C_2)_{dd'}^2 \Big]

    with the mean :math:`m_i` and the covariance :math:`C_i` (denominator: size − 1) of the features of group i. The
    distance is 0 if a group has fewer than two samples. In the causal model of the paper (arXiv:2206.11646), features
    are invariant if their distribution is the same under all mixtures of domains; this needs one distance per step
    instead of one per pair of domains. The name in DomainBed is ``CausIRL_CORAL``. Differences from it: all domains
    share one forward pass, which matters for batch norm that is not frozen; the metric ``loss`` is the whole objective
    and ``nll`` its first term. See `CausIRL` for the hyperparameter.
    """

    def distance(self, z: Tensor, masks: Tensor) -> Tensor:
        """Return the squared distance of the means plus that of the covariances."""
        sizes = masks.sum(1)
        means = masks @ z / sizes.clamp(min=1).unsqueeze(1)  # [2, n]
        deviations = (z - means.unsqueeze(1)) * masks.unsqueeze(2)  # [2, N, n]
        covariances = deviations.mT @ deviations / (sizes - 1).clamp(min=1).view(2, 1, 1)  # [2, n, n]
        return (means[0] - means[1]).square().mean() + (covariances[0] - covariances[1]).square().mean()
