"""The invariant gradient angle: whether the last step goes where the last τ steps went together.

cos(θ^(r) − θ^(r−1), θ^(r) − θ^(r−τ)). Large means that the path of the weights fluctuates little.
"""

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.trees import Params


def start(params: Params, length: int) -> Params:
    """The past before the first round, the oldest weights first: nothing but θ^(0)."""
    return trees.repeat(params, length)  # type: ignore[no-any-return]


def remembered(past: Params, params: Params) -> Params:
    """The past, one round later."""
    return {name: torch.cat([leaf[1:], params[name][None]]) for name, leaf in past.items()}


def renewed(past: Params, params: Params, now: Tensor) -> Params:
    """A past of one moment, which is ``now``, if it is: the authors' snapshot."""
    return trees.where(now, {name: leaf[None] for name, leaf in params.items()}, past)  # type: ignore[no-any-return]


def lagged(past: Params, params: Params, step: Params) -> Tensor:
    """h·(θ^(r) − θ^(r−τ)) and ‖θ^(r) − θ^(r−τ)‖²: [2]."""
    path = trees.subtract(params, trees.index(past, 0))
    return torch.stack([trees.dot(step, path), trees.dot(path, path)])
