"""Optimizers as pure functions: state in, state out, so that they can be mapped, captured and saved.

Their numbers may be tensors: trials that differ in the learning rate then share one batch.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.compilation import compiled, inside_transform
from pogm.core.flat_params import FlatParams, Params, flat_vector, unflatten
from pogm.core.trees import Tree

Scalar = float | Tensor

LARGE = 2**16  # weights from which on a CPU uses torch's own kernel
PART = 2**18  # weights that it updates at a time


class Optimizer(Protocol):
    """Anything that turns weights and their gradient into new weights."""

    def init(self, params: Params) -> Tree:
        """The state before the first update: zeros, and a "count" of updates."""

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """The weights and the state after one update."""


def mark_for_reset(state: Tree, kept: Tensor) -> Tree:
    """The state, to be begun anew where it is not kept: what was counted is forgotten now, the rest when it is used."""
    return state | {"count": torch.where(kept, state["count"], 0)}


def apply_reset(state: Tree) -> Tree:
    """The state as an update takes it: a fresh one is all zeros."""
    return trees.masked(state["count"] > 0, state)


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
        moved = _descended(flat_vector(params), _like(gradient, params), self.lr, self.weight_decay)
        return unflatten(moved, params), {"count": state["count"] + 1}


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
        zeros = torch.zeros_like(flat_vector(params))
        return {"mean": zeros, "square": zeros.clone(), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the mean gradient over the root of the mean squared gradient."""
        weights, slope = flat_vector(params), _like(gradient, params)
        numbers = (self.lr, self.weight_decay, self.beta1, self.beta2)
        known = not (torch.is_grad_enabled() and any(map(_differentiated, (weights, slope, *numbers))))
        large = weights.device.type == "cpu" and weights.numel() > LARGE and not inside_transform()
        moved, after = (self._adapted_in_parts if known and large else self._adapted)(weights, slope, state)
        return unflatten(moved, params), after

    def _adapted(self, weights: Tensor, slope: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        rates = (self.lr, self.weight_decay, self.beta1, self.beta2, self.eps)
        return _adapted(weights, slope, state, *rates)

    def _adapted_in_parts(self, weights: Tensor, slope: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """The same by the kernel of ``torch.optim.Adam(fused=True)``, on copies that are still in the CPU's cache."""
        moved, mean, square = after = [torch.empty_like(weights) for _ in range(3)]
        count = state["count"] + 1
        steps = [count.float()]
        numbers: dict[str, Any] = {"eps": self.eps, "amsgrad": False, "maximize": False}
        for name in ("lr", "weight_decay", "beta1", "beta2"):
            numbers[name] = float(getattr(self, name))
        slope = slope.to(weights.dtype).contiguous()  # which the kernel takes for granted
        parts = (torch.split(whole, PART) for whole in (weights, state["mean"], state["square"], slope, *after))
        for *before, there, theta, m, v in zip(*parts, strict=True):
            for new, old in zip((theta, m, v), before, strict=True):
                new.copy_(old)
            torch._fused_adam_([theta], [there], [m], [v], [], steps, **numbers)
        return moved, {"mean": mean, "square": square, "count": count}


@compiled
def _descended(weights: Tensor, slope: Tensor, lr: Scalar, weight_decay: Scalar) -> Tensor:
    """θ − η (g + λθ)."""
    moved: Tensor = weights - _cast(lr, weights) * _decayed(slope, weights, weight_decay)
    return moved


@compiled
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
    """θ − η m̂ / (√v̂ + ε), and the state after it."""
    count = state["count"] + 1
    rate, correction = lr / (1 - beta1**count), (1 - beta2**count) ** -0.5  # η / (1 − β₁ᵗ), and √v to √v̂
    slope = _decayed(slope, weights, weight_decay)
    mean = torch.lerp(state["mean"], slope, _cast(1 - beta1, slope))  # m
    square = torch.lerp(state["square"], slope * slope, _cast(1 - beta2, slope))  # v
    offset = torch.full((), eps, dtype=slope.dtype, device=slope.device)
    root = torch.addcmul(offset, square.sqrt(), correction.to(slope.dtype))
    moved = torch.addcdiv(weights, mean * -rate.to(slope.dtype), root)
    return moved, {"mean": mean, "square": square, "count": count}


def _like(gradient: Params, params: Params) -> Tensor:
    """The gradient as a vector, in the order of the weights."""
    return flat_vector(gradient if isinstance(gradient, FlatParams) else {name: gradient[name] for name in params})


def _differentiated(number: Scalar) -> bool:
    return isinstance(number, Tensor) and number.requires_grad


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
