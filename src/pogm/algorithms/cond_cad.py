"""CondCAD: class-conditional contrastive adversarial domain bottleneck."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.domain_bottleneck import DomainBottleneck


@dataclass(frozen=True)
class CondCAD(DomainBottleneck):
    r"""Conditional CAD (Ruan et al., ICLR 2022): neighbours of a sample within its class are of other domains.

    .. math:: \tfrac1K \sum_k L_k + \lambda \operatorname{mean}_i B_i, \qquad
        B_i = - \tfrac{\tau}{\tau_0} \log \sum_{j: k_j \ne k_i} p_{ij}, \qquad
        p_{ij} = \frac{e^{z_i \cdot z_j / \tau}\, 1[y_j = y_i]}{\sum_{l \ne i: y_l = y_i} e^{z_i \cdot z_l / \tau}}

    This is `CAD` with all sums over samples of the class of i: an estimate of the information about the domain, given
    the class. The mean is over samples whose class occurs in another domain (without ``flipped``: a second time in the
    same domain). With λ = 0 or one domain this is ERM. See `DomainBottleneck` for the hyperparameters and
    `CAD` for the differences from DomainBed.
    """

    def candidates(self, others: Tensor, same_class: Tensor) -> Tensor:
        """Return the other samples of the same class."""
        return same_class
