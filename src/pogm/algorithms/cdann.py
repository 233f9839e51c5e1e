"""CDANN: class-conditional domain-adversarial training."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.adversarial import Adversarial
from pogm.core.losses import probabilities
from pogm.core.model import Model, Network


@dataclass(frozen=True)
class CDANN(Adversarial):
    r"""Conditional domain-adversarial networks (Li et al., 2018): features do not predict the domain, given the class.

    The input of the discriminator D is :math:`u = z + e(y)`, where the embedding e of the class is trained with D. All
    classes have the same weight, independent of their number of samples:

    .. math:: \min_{D, e} d, \qquad \min_{\phi, g} \tfrac1K \sum_k L_k - \lambda d, \qquad
        d = \sum_j \frac{c_j}{n_{y_j} C'} + \rho \tfrac1N \sum_j \Big\| \nabla_{u_j} \sum_i c_i \Big\|^2, \qquad
        c_j = \ell(D(u_j), k_j),

    where :math:`n_c` is the number of samples of class c in the minibatch and C' is the largest class index in it plus
    one. As in DomainBed, the sum in the penalty has no class weights. See `Adversarial` for the hyperparameters and the
    order of the updates.
    """

    needs_classes: ClassVar[bool] = True  # the discriminator is conditional on the class

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Add the embedding, a linear layer on one-hot classes."""
        network = super().build(features, width, num_classes, num_domains)
        embedding = nn.Linear(num_classes, width, bias=False)
        nn.init.normal_(embedding.weight)
        network.add_module("embedding", embedding)
        return network

    def discriminator_input(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Return u = z + e(y), [K, B, n]."""
        if y.is_floating_point():
            raise UsageError(
                "Expected labels that are classes, because CDANN is conditional on the class; found "
                "probabilities, as Mixup makes them. Leave the modifier out, or use DANN."
            )
        classes = model.params["embedding.weight"].shape[1]  # C
        return z + model.part("embedding")(probabilities(y, classes).to(z.dtype))

    def reduce_losses(self, losses: Tensor, y: Tensor) -> Tensor:
        """Return Σ_j c_j / (n_{y_j} C'), which gives all classes the same weight."""
        class_sizes = (y.flatten().unsqueeze(1) == y.flatten()).sum(1).view(y.shape)  # n_{y_j}
        return (losses / (class_sizes * (y.max() + 1))).sum()
