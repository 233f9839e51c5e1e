"""Predictions of a model for one site."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SiteResult:
    """Predictions of a model for one site."""

    site: str
    logits: Tensor  # [N, classes]
    labels: Tensor  # [N]

    @property
    def accuracy(self) -> float:
        """Share of images that are classified correctly."""
        return float((self.logits.argmax(-1) == self.labels).double().mean())
