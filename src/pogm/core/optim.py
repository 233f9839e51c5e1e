"""Optimizers as pure functions: state in, state out, so that they can be mapped, captured and saved.

Their numbers may be tensors: trials that differ in the learning rate then share one batch.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pogm.core.trees import Params, Tree, map_leaves

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
    """Adam (Kingma and Ba, 2015) with L2 weight decay in the gradient, as ``torch.optim.Adam`` has it."""

    lr: Scalar
    weight_decay: Scalar = 0.0
    beta1: Scalar = 0.9
    beta2: Scalar = 0.999
    eps: float = 1e-8

    def init(self, params: Params) -> Tree:
        """Zero moments."""
        zeros = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
        return {"mean": zeros, "square": map_leaves(torch.clone, zeros), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the mean gradient over the root of the mean squared gradient."""
        gradient = _decay(self.weight_decay, params, gradient)
        count = state["count"] + 1
        rate = self.lr / (1 - self.beta1**count)
        correction = (1 - self.beta2**count) ** -0.5

        moved, mean, square = {}, {}, {}
        for name, leaf in params.items():
            g = gradient[name]
            mean[name] = torch.lerp(state["mean"][name], g, _weight(1 - self.beta1, leaf))
            square[name] = torch.lerp(state["square"][name], g * g, _weight(1 - self.beta2, leaf))
            root = square[name].sqrt() * correction.to(leaf.dtype) + self.eps
            moved[name] = leaf - rate.to(leaf.dtype) * (mean[name] / root)
        return moved, {"mean": mean, "square": square, "count": count}


def _counter(params: Params) -> Tensor:
    """Float64: 1 − β^t of a float32 t loses digits that the first steps need."""
    return next(iter(params.values())).new_zeros((), dtype=torch.float64)


def _decay(weight_decay: Scalar, params: Params, gradient: Params) -> Params:
    if isinstance(weight_decay, float | int) and weight_decay == 0:
        return gradient
    return {name: gradient[name] + _cast(weight_decay, leaf) * leaf for name, leaf in params.items()}


def _cast(value: Scalar, leaf: Tensor) -> Scalar:
    return value.to(leaf.dtype) if isinstance(value, Tensor) else value


def _weight(value: Scalar, leaf: Tensor) -> Tensor | float:
    """``lerp`` takes a number, or a tensor of the leaf's own dtype."""
    return value.to(leaf.dtype) if isinstance(value, Tensor) else value
