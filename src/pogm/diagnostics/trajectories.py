"""What is measured on the step h and the domains' trajectories h_i; of the weights that predict, and no others."""

import torch
from torch import Tensor

from pogm.core.trees import Params
from pogm.pareto import gramian


def predicting(params: Params) -> Params:
    """The weights that predict: no discriminator's, and not those of a part that a modifier added."""
    return {name: leaf for name, leaf in params.items() if name.startswith(("features.", "head."))}


def products(step: Params, trajectories: list[Params]) -> Tensor:
    """The inner products of h, h_1, …, h_K and those of held-out domains: a Gramian with h in its first row."""
    return gramian({name: torch.cat([leaf[None], *(t[name] for t in trajectories)]) for name, leaf in step.items()})


def differences(step: Params, trajectories: Params) -> tuple[Tensor, Tensor]:
    """‖θ_i − θ⁺‖², and the sum over weight tensors of ‖θ_i − θ⁺‖, which the authors' code has: [K] each."""
    rows = [(trajectories[name] - leaf).flatten(1).double() for name, leaf in step.items()]  # θ_i − θ⁺ = h_i − h
    squares = torch.stack([row.square().sum(1) for row in rows])  # [tensors, K]
    return squares.sum(0), squares.sqrt().sum(0)
