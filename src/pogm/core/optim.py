"""Optimizers as pure functions: state in, state out, so that they can be mapped, captured and saved.

Their numbers may be tensors: trials that differ in the learning rate then share one batch.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pogm.core.fuse import fused, inside_transform
from pogm.core.packed import Params, renamed, vector
from pogm.core.trees import Tree

Scalar = float | Tensor

PART = 2**16  # weights that a CPU updates at a time


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
        moved = _descended(vector(params), vector(gradient), self.lr, self.weight_decay)
        return renamed(moved, params), {"count": state["count"] + 1}


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
        zeros = torch.zeros_like(vector(params))
        return {"mean": zeros, "square": zeros.clone(), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the mean gradient over the root of the mean squared gradient."""
        rates = (self.lr, self.weight_decay, self.beta1, self.beta2, self.eps)
        weights, slope = vector(params), vector(gradient)
        large = weights.device.type == "cpu" and weights.numel() > PART and not inside_transform()
        moved, after = (_adapted_in_parts if large else _adapted)(weights, slope, state, *rates)
        return renamed(moved, params), after


@fused
def _descended(weights: Tensor, slope: Tensor, lr: Scalar, weight_decay: Scalar) -> Tensor:
    """θ − η (g + λθ)."""
    moved: Tensor = weights - _cast(lr, weights) * _decayed(slope, weights, weight_decay)
    return moved


@fused
def _adapted(
    weights: Tensor,
    slope: Tensor,
    state: dict[str, Tensor],
    lr: Scalar,
    weight_decay: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """θ − η m̂ / (√v̂ + ε), and the new moments m and v."""
    slope = _decayed(slope, weights, weight_decay)
    count = state["count"] + 1
    mean = torch.lerp(state["mean"], slope, _cast(1 - beta1, slope))
    square = torch.lerp(state["square"], slope * slope, _cast(1 - beta2, slope))
    rate = lr / (1 - beta1**count)
    correction = (1 - beta2**count) ** -0.5
    change = rate.to(slope.dtype) * mean / (square.sqrt() * correction.to(slope.dtype) + eps)
    return weights - change, {"mean": mean, "square": square, "count": count}


def _adapted_in_parts(
    weights: Tensor, slope: Tensor, state: dict[str, Tensor], *rates: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same, some weights at a time: on a CPU, what lies between is then in its cache, and not in fresh memory."""
    results = [torch.empty_like(weights) for _ in range(3)]
    sources = (weights, slope, state["mean"], state["square"])
    for here, there, mean, square, *parts in zip(*(torch.split(t, PART) for t in (*sources, *results)), strict=True):
        moved, after = _adapted(here, there, {"mean": mean, "square": square, "count": state["count"]}, *rates)
        for part, result in zip(parts, (moved, after["mean"], after["square"]), strict=True):
            part.copy_(result)
    return results[0], {"mean": results[1], "square": results[2], "count": state["count"] + 1}


def _counter(params: Params) -> Tensor:
    """Float64: 1 − β^t of a float32 t loses digits that the first steps need."""
    return next(iter(params.values())).new_zeros((), dtype=torch.float64)


def _decayed(slope: Tensor, weights: Tensor, weight_decay: Scalar) -> Tensor:
    """g + λθ."""
    if isinstance(weight_decay, float | int) and weight_decay == 0:
        return slope
    decayed: Tensor = slope + _cast(weight_decay, weights) * weights
    return decayed


def _cast(value: Scalar, leaf: Tensor) -> Any:
    """A tensor in the leaf's own dtype; a number stays one."""
    return value.to(leaf.dtype) if isinstance(value, Tensor) else value
