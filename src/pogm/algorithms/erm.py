"""Empirical risk minimisation, the baseline of all methods."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm


@dataclass(frozen=True)
class ERM(Algorithm):
    r"""Empirical risk minimisation (Vapnik, 1998): minimise the mean risk over domains.

    .. math:: \tfrac1K \sum_k L_k
    """

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """Samples: the gradient of a mean over samples is the mean of the gradients of its parts."""
        return ("samples",)
