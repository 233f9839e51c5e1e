"""Mixup between domains."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.losses import probabilities
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Mixup(Modifier):
    r"""Inter-domain mixup (Zhang et al., 2018; Yan et al., 2020): mix the images and labels of pairs of domains.

    .. math:: x = \lambda x_i + (1 - \lambda) x_j, \qquad y = \lambda y_i + (1 - \lambda) y_j, \qquad
        \lambda \sim \operatorname{Beta}(a, a)

    The partner j of domain i is the next domain in a random cyclic order; each pair has one λ. Labels become
    probabilities; their cross-entropy is the mixture of both. For the algorithm, mixture i is the minibatch of domain
    i. With one domain this is the identity. Difference from DomainBed: all mixtures share one forward pass, which
    matters for batch norm that is not frozen. Its tables of 2020 searched only a = 0.1, besides the default.

    Args:
        alpha: Parameter a of the Beta distribution.
    """

    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")

    alpha: float = hyper(0.2, Power(10, -1, 1), above=0, draw_as="mixup_alpha")  # a

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Return the mixture of the minibatch of each domain and that of its partner."""
        count = batch.y.shape[0]
        order = random.permutation(random.fold(key, 0), count)
        partner = order.roll(-1)[order.argsort()]  # the partner of domain order[i] is order[i + 1]
        share = random.beta(random.fold(key, 1), self.alpha, (count,)).to(batch.x.dtype)  # λ
        is_index = not batch.y.is_floating_point()
        labels = probabilities(batch.y, num_classes).movedim(-1, 2) if is_index else batch.y  # classes are axis 2

        def mix(values: Tensor) -> Tensor:
            weight = share.reshape(-1, *[1] * (values.ndim - 1))
            return weight * values + (1 - weight) * values[partner]

        return Batch(mix(batch.x), mix(labels))
