"""MMD: match the distribution of the features across domains by a kernel distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.state import Loss, State

GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class MMD(Algorithm):
    r"""Maximum mean discrepancy (Li et al., 2018): match feature distributions across domains with Gaussian kernels.

    .. math:: \tfrac1K \sum_k L_k + \gamma \tfrac{2}{K (K-1)} \sum_{i<j} (M_{ii} + M_{jj} - 2 M_{ij}), \qquad
        M_{ij} = \tfrac{1}{B^2} \sum_{a \in z_i, b \in z_j} \sum_\sigma e^{-\sigma \lVert a - b \rVert^2}

    over :math:`\sigma = 10^{-3}, \dots, 10^3`; the pairs include each sample with itself, so two minibatches of one
    distribution have a discrepancy of up to 14/B, while constant features have 0. The paper adds an adversarial
    autoencoder; this is the version of DomainBed, without it. With one domain this is ERM. Differences from DomainBed:
    it expands the squared distances and clamps them at 1e-30, and the kernels multiply the rounding error by up to
    1000; we subtract first, which needs memory for B²n numbers per pair of domains. All domains share one forward pass,
    which matters for batch norm that is not frozen. The metric ``loss`` is the whole objective and ``nll`` its first
    term (DomainBed reports the first term as the loss).

    Args:
        penalty: Weight γ of the discrepancy.
    """

    penalty: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mmd_gamma")  # γ

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted discrepancy between domains."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        discrepancy = mean_discrepancy(z)
        return Loss(risk + self.penalty * discrepancy, {"nll": risk, "penalty": discrepancy})


def mean_discrepancy(z: Tensor) -> Tensor:
    """Return the mean over pairs of domains of the squared discrepancy: 2 (mean M_ii − mean M_ij); z is [K, B, n]."""
    count = z.shape[0]
    if count == 1:
        return z.new_zeros(())
    within = torch.stack([mean_kernel(z[k], z[k]) for k in range(count)])
    between = torch.stack([mean_kernel(z[i], z[j]) for i in range(count) for j in range(i)])
    return 2 * (within.mean() - between.mean())


def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
    """Return M: the mean over all pairs of samples of a and b of the sum of kernels."""
    squares = (a[:, None] - b).square().sum(-1)  # [B, B]
    return torch.stack([torch.exp(-gamma * squares) for gamma in GAMMAS]).sum(0).mean()
