"""CAD: contrastive adversarial domain bottleneck."""

from dataclasses import dataclass

from pogm.algorithms.domain_bottleneck import DomainBottleneck


@dataclass(frozen=True)
class CAD(DomainBottleneck):
    r"""Contrastive adversarial domain bottleneck (Ruan et al., ICLR 2022): neighbours of a sample are of other domains.

    .. math:: \tfrac1K \sum_k L_k + \lambda \operatorname{mean}_i B_i, \qquad
        B_i = - \tfrac{\tau}{\tau_0} \log \sum_{j: k_j \ne k_i} p_{ij}, \qquad
        p_{ij} = \frac{e^{z_i \cdot z_j / \tau}}{\sum_{l \ne i} e^{z_i \cdot z_l / \tau}}, \quad \tau_0 = 0.07

    over the samples i, j, l of all domains of a minibatch: a contrastive estimate of the information about the domain
    in the features. With ``flipped=False``, it is :math:`B_i = \tfrac{\tau}{\tau_0} \log \sum_{j: k_j = k_i} p_{ij}`,
    which has the same optimum, but is less stable. As in DomainBed, the mean is over samples whose class occurs twice
    or more in the minibatch. With λ = 0 or one domain this is ERM. Differences from DomainBed: without ``flipped``, the
    sum excludes j = i; its option of a projection head is missing, because it raises an error there. See
    `DomainBottleneck` for the hyperparameters.
    """
