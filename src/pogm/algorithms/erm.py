"""Empirical risk minimisation, the method to beat."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm


@dataclass(frozen=True)
class ERM(Algorithm):
    r"""Empirical risk minimisation (Vapnik, 1998): the mean risk over domains.

    .. math:: \tfrac1K \sum_k L_k
    """

    @property
    def spreads(self) -> tuple[str, ...]:
        """A mean over samples is a mean of means."""
        return ("samples",)
