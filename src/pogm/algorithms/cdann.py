"""Class-conditional domain-adversarial training."""

from dataclasses import dataclass

from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.adversarial import Adversarial
from pogm.core.model import Model, Network, probabilities


@dataclass(frozen=True)
class CDANN(Adversarial):
    r"""Conditional invariant adversarial networks (Li et al., 2018): features that, given the class, hide the domain.

    The discriminator sees :math:`u = z + e(y)` with an embedding e of the class that it learns, and every class
    weighs the same, however many samples of it there are,

    .. math:: \min_{D, e} d, \qquad \min_{\phi, g} \tfrac1K \sum_k L_k - \lambda d, \qquad
        d = \sum_j \frac{c_j}{n_{y_j} C'} + \rho \tfrac1N \sum_j \Big\| \nabla_{u_j} \sum_i c_i \Big\|^2, \qquad
        c_j = \ell(D(u_j), k_j),

    where :math:`n_c` samples of the minibatch are of class c and C' is one more than the largest class among them, as
    in DomainBed; so is the penalty, whose sum has no weights. Turns are taken as in DANN.
    """

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """The embedding is a linear layer on the class, one-hot."""
        network = super().build(features, width, num_classes, num_domains)
        embedding = nn.Linear(num_classes, width, bias=False)
        nn.init.normal_(embedding.weight)
        network.add_module("embedding", embedding)
        return network

    def seen(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Features moved by the embedding of their class: [K, B, n]."""
        if y.is_floating_point():
            raise UsageError(
                "Expected labels that are classes, since CDANN tells domains apart class by class; found "
                "probabilities, as Mixup makes them. Leave the modifier out, or use DANN."
            )
        classes = model.params["embedding.weight"].shape[1]  # C
        return z + model.part("embedding")(probabilities(y, classes).to(z.dtype))

    def averaged(self, losses: Tensor, y: Tensor) -> Tensor:
        """Every class weighs the same."""
        of_my_class = (y.flatten().unsqueeze(1) == y.flatten()).sum(1).view(y.shape)  # n_{y_j}
        return (losses / (of_my_class * (y.max() + 1))).sum()
