"""ConfidencePenalty: a modifier of another package."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pogm.core.batch import Batch
from pogm.core.hyperparameters import Uniform, hyper
from pogm.core.model import Model, over_samples
from pogm.modifiers import Modifier


@dataclass(frozen=True)
class ConfidencePenalty(Modifier):
    r"""Confidence penalty (Pereyra et al., 2017): subtract the entropy of the predictions from the risk.

    .. math:: L_k - \beta \operatorname{mean}_x H(p(y \mid x))

    Args:
        weight: Weight β of the entropy.
    """

    needs_classes: ClassVar[bool] = True
    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")  # a mean over samples of one domain

    weight: float = hyper(0.1, Uniform(0, 0.5), least=0)  # β

    def penalty(self, model: Model, batch: Batch) -> Tensor:
        """Return the negative entropy of each domain, weighted: [K]."""
        log_probabilities = over_samples(model, batch.x).log_softmax(-1)  # [K, B, classes]
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean(1)
        return -self.weight * entropy
