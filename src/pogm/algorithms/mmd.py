"""MMD: features with the same distribution in every domain, as kernels see it."""

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
    r"""Maximum mean discrepancy (Li et al., 2018): the features of all domains, alike under Gaussian kernels.

    .. math:: \tfrac1K \sum_k L_k + \gamma \tfrac{2}{K (K-1)} \sum_{i<j} (M_{ii} + M_{jj} - 2 M_{ij}), \qquad
        M_{ij} = \tfrac{1}{B^2} \sum_{a \in z_i, b \in z_j} \sum_\sigma e^{-\sigma \lVert a - b \rVert^2}

    over :math:`\sigma = 10^{-3}, \dots, 10^3`; a sample is its own neighbour too. The paper adds an adversarial
    autoencoder; this is DomainBed's version, without. DomainBed expands the squared distances, whose rounding the
    kernels multiply by up to 1000; we subtract first, which takes memory for B²n numbers a pair of domains, and makes
    its clamping at 1e-30 idle. Domains share one pass, where DomainBed's have one each: with live batch norm they
    differ. The ``loss`` reported is the whole, its first term ``nll`` (DomainBed reports that as the loss). With a
    single domain this is ERM.
    """

    penalty: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mmd_gamma")  # gamma

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk plus the weighted discrepancy of the domains."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_of(z, batch).mean()
        discrepancy = mean_discrepancy(z)
        return Loss(risk + self.penalty * discrepancy, {"nll": risk, "penalty": discrepancy})


def mean_discrepancy(z: Tensor) -> Tensor:
    """The mean over pairs of domains of their squared discrepancy: twice the likeness within less that between."""
    count = z.shape[0]
    if count == 1:
        return z.new_zeros(())
    within = torch.stack([mean_kernel(z[k], z[k]) for k in range(count)])
    between = torch.stack([mean_kernel(z[i], z[j]) for i in range(count) for j in range(i)])
    return 2 * (within.mean() - between.mean())


def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
    """The mean over all pairs of a sample of a and one of b of the sum of kernels."""
    squares = (a[:, None] - b).square().sum(-1)  # [B, B]
    return torch.stack([torch.exp(-gamma * squares) for gamma in GAMMAS]).sum(0).mean()
