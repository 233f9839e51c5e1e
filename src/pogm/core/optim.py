"""Optimizers as pure functions: state in, state out, so that they can be mapped, captured and saved.

Their numbers may be tensors: trials that differ in the learning rate then share one batch.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pogm.core.trees import Params, Tree

Scalar = float | Tensor


class Optimizer(Protocol):
    """Anything that turns weights and their gradient into new weights."""

    def init(self, params: Params) -> Tree:
        """The state before the first update."""

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """The weights and the state after one update."""


@dataclass(frozen=True)
class SGD:
    """Gradient descent: θ ← θ − η (g + λθ)."""

    lr: Scalar
    weight_decay: Scalar = 0.0

    def init(self, params: Params) -> Tree:
        """Nothing is remembered; one number, so that a state is never empty."""
        return {"count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step against the gradient."""
        gradient = _decay(self.weight_decay, params, gradient)
        moved = {name: leaf - _cast(self.lr, leaf) * gradient[name] for name, leaf in params.items()}
        return moved, {"count": state["count"] + 1}


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay in the gradient, as ``torch.optim.Adam`` has it.

    The moments of all weights are one vector: ten operations for the whole network instead of ten for each leaf.
    """

    lr: Scalar
    weight_decay: Scalar = 0.0
    beta1: Scalar = 0.9
    beta2: Scalar = 0.999
    eps: float = 1e-8

    def init(self, params: Params) -> Tree:
        """Zero moments."""
        zeros = torch.zeros_like(_flat(params))
        return {"mean": zeros, "square": zeros.clone(), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the mean gradient over the root of the mean squared gradient."""
        flat = _flat(_decay(self.weight_decay, params, gradient))
        count = state["count"] + 1
        mean = torch.lerp(state["mean"], flat, _cast(1 - self.beta1, flat))
        square = torch.lerp(state["square"], flat * flat, _cast(1 - self.beta2, flat))
        rate = self.lr / (1 - self.beta1**count)
        correction = (1 - self.beta2**count) ** -0.5
        change = rate.to(flat.dtype) * mean / (square.sqrt() * correction.to(flat.dtype) + self.eps)

        pieces = change.split([leaf.numel() for leaf in params.values()])
        moved = {
            n: leaf - piece.view(leaf.shape).to(leaf.dtype)
            for (n, leaf), piece in zip(params.items(), pieces, strict=True)
        }
        return moved, {"mean": mean, "square": square, "count": count}


def _flat(tree: Params) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in tree.values()])


def _counter(params: Params) -> Tensor:
    """Float64: 1 − β^t of a float32 t loses digits that the first steps need."""
    return next(iter(params.values())).new_zeros((), dtype=torch.float64)


def _decay(weight_decay: Scalar, params: Params, gradient: Params) -> Params:
    if isinstance(weight_decay, float | int) and weight_decay == 0:
        return gradient
    return {name: gradient[name] + _cast(weight_decay, leaf) * leaf for name, leaf in params.items()}


def _cast(value: Scalar, leaf: Tensor) -> Any:
    """A tensor in the leaf's own dtype; a number stays one."""
    return value.to(leaf.dtype) if isinstance(value, Tensor) else value
