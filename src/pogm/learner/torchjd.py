"""TorchJD: aggregators of the package torchjd as methods on trajectories."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State


@dataclass(frozen=True)
class TorchJD(WeightedRounds):
    r"""An aggregator of TorchJD (Quinton and Rey, 2024) on the trajectories of the domains.

    .. math:: \theta \leftarrow \theta + \alpha \mathcal{A}(h_1, \dots, h_K)

    The aggregator must depend on the trajectories only through their inner products, as UPGrad, CAGrad, MGDA, PCGrad,
    DualProj, AlignedMTL, IMTLG and most others do. It must not keep a state between steps. It runs outside of CUDA
    graphs and ``vmap``. Install it by ``pip install 'pogm[torchjd]'``.

    Args:
        aggregator: Object of ``torchjd.aggregation``.

    Example:
        >>> from torchjd.aggregation import AlignedMTL
        >>> from pogm import TorchJD
        >>> method = TorchJD(AlignedMTL(), inner_steps=5)
    """

    abstract: ClassVar[bool] = True  # needs an argument, so it is no registered algorithm

    aggregator: nn.Module

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.aggregator, "gramian_weighting", None), nn.Module):
            raise UsageError(
                "Expected an aggregator of torchjd.aggregation that depends only on inner products, such as UPGrad(); "
                f"found {self.aggregator!r}. Pass another one."
            )
        super().__post_init__()

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights that the aggregator gives the trajectories, for every block of the partition."""
        weighting: nn.Module = self.aggregator.gramian_weighting  # type: ignore[assignment]
        blocks = gram.reshape(-1, *gram.shape[-2:])
        return torch.stack([weighting(block) for block in blocks]).reshape(gram.shape[:-1])
