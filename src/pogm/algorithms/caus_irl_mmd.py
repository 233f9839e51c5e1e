"""CausIRL with the distance of MMD."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.algorithms.caus_irl import CausIRL

GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class CausIRLMMD(CausIRL):
    r"""CausIRL with MMD (Chevalley et al., 2022): match the features of two mixtures of domains with Gaussian kernels.

    Every step divides the minibatch of each domain k at a random place :math:`s_k \in \{0, \dots, B - 1\}`. The first
    parts of all domains are group 1, the second parts group 2:

    .. math:: \tfrac1K \sum_k L_k + \gamma (M_{11} + M_{22} - 2 M_{12}), \qquad
        M_{ij} = \operatorname{mean}_{a \in z_i, b \in z_j} \sum_\sigma e^{-\sigma \lVert a - b \rVert^2}

    over :math:`\sigma = 10^{-3}, \dots, 10^3`; the pairs include each sample with itself. The distance is 0 if a group
    has fewer than two samples. In the causal model of the paper (arXiv:2206.11646), features are invariant if their
    distribution is the same under all mixtures of domains. The name in DomainBed is ``CausIRL_MMD``. Differences from
    it: squared distances are computed from differences, as in `MMD`, which needs memory for (KB)²n numbers; all domains
    share one forward pass, which matters for batch norm that is not frozen; the metric ``loss`` is the whole objective
    and ``nll`` its first term. See `CausIRL` for the hyperparameter.
    """

    def distance(self, z: Tensor, masks: Tensor) -> Tensor:
        """Return the squared discrepancy of the two groups: M_11 + M_22 − 2 M_12."""
        shares = masks / masks.sum(1, keepdim=True).clamp(min=1)
        contrast = shares[0] - shares[1]  # [N]
        squares = (z[:, None] - z).square().sum(-1)  # [N, N]
        kernel = torch.stack([torch.exp(-gamma * squares) for gamma in GAMMAS]).sum(0)
        return contrast @ kernel @ contrast
