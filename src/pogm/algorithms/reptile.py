"""Reptile: the mean of the domains' trajectories."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.state import State


@dataclass(frozen=True)
class Reptile(WeightedRounds):
    r"""Reptile in its batched form (Nichol et al., 2018): the model follows the mean of the domains' trajectories.

    .. math:: \theta \leftarrow \theta + \alpha \tfrac1K \sum_i h_i

    This is ``POGM(kappa=0, centre="mean")``: a control for what matching adds. With α = 1 the model becomes
    the mean of the copies, which is federated averaging (McMahan et al., 2017) with optimizers that stay where
    they are. The paper samples tasks; here every domain takes part in every round.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """The same for every domain."""
        return torch.full_like(gram[..., 0], 1 / gram.shape[-1])
