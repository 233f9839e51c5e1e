"""Reptile: the mean of the trajectories."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State


@dataclass(frozen=True)
class Reptile(WeightedRounds):
    r"""Reptile, batched (Nichol et al., 2018): move along the mean of the trajectories.

    .. math:: \theta \leftarrow \theta + \alpha \tfrac1K \sum_i h_i

    Equal to ``POGM(kappa=0, centre="mean")``, so it is the control for the effect of matching. With α = 1 the model
    becomes the mean of the copies: federated averaging (McMahan et al., 2017) with persistent local optimizers. The
    paper samples tasks; here every domain takes part in every round.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return 1/K for every domain."""
        return torch.full_like(gram[..., 0], 1 / gram.shape[-1])
