"""Inter-domain mixup."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import probabilities
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Mixup(Modifier):
    r"""Inter-domain mixup (Zhang et al., 2018; Yan et al., 2020): every domain is mixed with another one.

    .. math:: x = \lambda x_i + (1 - \lambda) x_j, \qquad y = \lambda y_i + (1 - \lambda) y_j, \qquad
        \lambda \sim \operatorname{Beta}(a, a)

    Partners follow a random cycle through the domains; there is one λ per pair. Labels become probabilities,
    whose cross-entropy is the mixture of the two. For the algorithm, mixture i is the minibatch of domain i. Mixtures
    share one pass, where DomainBed's have one each: with live batch norm they differ. Its tables of 2020 have searched
    a = 0.1 alone, beside the default. With a single domain this is the identity.
    """

    spreads: ClassVar[tuple[str, ...]] = ("domains", "samples")

    alpha: float = hyper(0.2, Power(10, -1, 1), above=0, draw_as="mixup_alpha")  # a

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """The mixture of each domain's minibatch and its partner's."""
        count = batch.y.shape[0]
        order = random.permutation(random.fold(key, 0), count)
        partner = order.roll(-1)[order.argsort()]  # domain p[i] goes with p[i + 1]
        share = random.beta(random.fold(key, 1), self.alpha, (count,)).to(batch.x.dtype)  # lambda
        labels = probabilities(batch.y, num_classes)

        def mixed(values: Tensor) -> Tensor:
            weight = share.reshape(-1, *[1] * (values.ndim - 1))
            return weight * values + (1 - weight) * values[partner]

        return Batch(mixed(batch.x), mixed(labels))
