"""Optimizers as pure functions of weights, gradient and state: they work under ``vmap`` and in CUDA graphs.

Hyperparameters may be tensors. Trials that differ in the learning rate can then be batched by ``vmap``. The learning
rate and the weight decay may also be vectors with one value per weight: parameter groups.
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

LARGE = 2**16  # number of weights above which a CPU uses torch's fused kernel
CHUNK = 2**18  # weights per call of that kernel


class Optimizer(Protocol):
    """Interface of optimizers."""

    def init(self, params: Params) -> Tree:
        """Return the state before the first update: zeros, including a "count" of updates."""

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Return the weights and the state after one update."""


def mark_for_reset(state: Tree, kept: Tensor) -> Tree:
    """Mark optimizer states for reset where ``kept`` is False: set the count to 0 now, zero the moments lazily."""
    return state | {"count": torch.where(kept, state["count"], 0)}


def apply_reset(state: Tree) -> Tree:
    """Zero the moments of the states that are marked for reset."""
    return trees.mask(state["count"] > 0, state)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: m ← μm + g + λθ, θ ← θ − ηm, as in ``torch.optim.SGD``."""

    lr: Scalar  # η
    weight_decay: Scalar = 0.0  # λ
    momentum: float = 0.0  # μ
    clip_norm: float | None = None  # largest norm of the gradient; longer ones are scaled to it

    def init(self, params: Params) -> Tree:
        """Return a state that counts the updates and, with momentum, holds m."""
        if self.momentum == 0:
            return {"count": _counter(params)}
        return {"momentum": torch.zeros_like(flat_vector(params)), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Return the weights and the state after one update."""
        weights, vector = flat_vector(params), _clip(_gradient_vector(gradient, params), self.clip_norm)
        count = {"count": state["count"] + 1}
        if self.momentum == 0:
            return unflatten(_sgd_update(weights, vector, self.lr, self.weight_decay), params), count
        updated, momentum = _momentum_update(
            weights, vector, state["momentum"], self.lr, self.weight_decay, self.momentum
        )
        return unflatten(updated, params), {"momentum": momentum, **count}


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay in the gradient, as in ``torch.optim.Adam``.

    The moments of all weights are one vector: an update takes ten operations, not ten for each weight tensor.
    """

    lr: Scalar  # η
    weight_decay: Scalar = 0.0  # λ
    beta1: Scalar = 0.9  # decay rate of the mean
    beta2: Scalar = 0.999  # decay rate of the mean square
    eps: float = 1e-8  # ε
    clip_norm: float | None = None  # largest norm of the gradient; longer ones are scaled to it
    in_place: bool = False  # overwrite the moments that are passed; only if `can_overwrite`

    def init(self, params: Params) -> Tree:
        """Return zero moments."""
        zeros = torch.zeros_like(flat_vector(params))
        return {"mean": zeros, "square": zeros.clone(), "count": _counter(params)}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Return the weights and the state after one update."""
        weights, vector = flat_vector(params), _clip(_gradient_vector(gradient, params), self.clip_norm)
        update = self._update_in_chunks if self._uses_kernel(weights, vector) else self._update
        updated, after = update(weights, vector, state)
        return unflatten(updated, params), after

    def can_overwrite(self, params: Params) -> bool:
        """Return True if updates of these weights can overwrite the moments (``in_place``)."""
        return isinstance(params, FlatParams) and self._uses_kernel(params.flat, params.flat)

    def _uses_kernel(self, weights: Tensor, gradient: Tensor) -> bool:
        numbers = (self.lr, self.weight_decay, self.beta1, self.beta2)
        needs_graph = torch.is_grad_enabled() and any(map(_requires_grad, (weights, gradient, *numbers)))
        large = weights.device.type == "cpu" and weights.numel() > LARGE and not inside_transform()
        return large and not needs_graph and not any(isinstance(n, Tensor) and n.ndim for n in numbers)

    def _update(self, weights: Tensor, gradient: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        rates = (self.lr, self.weight_decay, self.beta1, self.beta2, self.eps)
        return _adam_update(weights, gradient, state, *rates)

    def _update_in_chunks(self, weights: Tensor, gradient: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Update by the kernel of ``torch.optim.Adam(fused=True)``, in chunks that fit into the cache of a CPU."""
        moments = [state["mean"], state["square"]]
        updated, mean, square = after = [
            torch.empty_like(weights),
            *(moments if self.in_place else map(torch.empty_like, moments)),
        ]
        count = state["count"] + 1
        steps = [count.float()]
        numbers: dict[str, Any] = {"eps": self.eps, "amsgrad": False, "maximize": False}
        for name in ("lr", "weight_decay", "beta1", "beta2"):
            numbers[name] = float(getattr(self, name))
        gradient = gradient.to(weights.dtype).contiguous()  # the kernel does not check this
        vectors = (weights, *moments, gradient, *after)
        chunks = [[vector] if len(weights) <= CHUNK else torch.split(vector, CHUNK) for vector in vectors]
        for *before, g, theta, m, v in zip(*chunks, strict=True):
            for new, old in zip((theta, m, v)[: 1 if self.in_place else 3], before, strict=False):
                new.copy_(old)
            torch._fused_adam_([theta], [g], [m], [v], [], steps, **numbers)
        return updated, {"mean": mean, "square": square, "count": count}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): θ ← (1 − ηλ) θ before the update of Adam."""

    weight_decay: Scalar = 0.01  # λ

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Return the weights and the state after one update."""
        decayed = unflatten(_decay(flat_vector(params), self.lr, self.weight_decay), params)
        plain = Adam(self.lr, 0.0, self.beta1, self.beta2, self.eps, self.clip_norm)
        return plain.update(decayed, gradient, state)


OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


@compiled
def _sgd_update(weights: Tensor, gradient: Tensor, lr: Scalar, weight_decay: Scalar) -> Tensor:
    """Return θ − η (g + λθ)."""
    updated: Tensor = weights - _cast(lr, weights) * _add_decay(gradient, weights, weight_decay)
    return updated


@compiled
def _momentum_update(
    weights: Tensor, gradient: Tensor, momentum: Tensor, lr: Scalar, weight_decay: Scalar, decay: float
) -> tuple[Tensor, Tensor]:
    """Return θ − η m and m ← μ m + g + λθ."""
    momentum = decay * momentum + _add_decay(gradient, weights, weight_decay)
    return weights - _cast(lr, weights) * momentum, momentum


@compiled
def _decay(weights: Tensor, lr: Scalar, weight_decay: Scalar) -> Tensor:
    """Return (1 − ηλ) θ."""
    decayed: Tensor = weights * _cast(1 - lr * weight_decay, weights)
    return decayed


@compiled
def _scale_to_norm(gradient: Tensor, most: float) -> Tensor:
    """Return the gradient, scaled to the norm ``most`` if it is longer, as ``torch.nn.utils.clip_grad_norm_``."""
    scaled: Tensor = gradient * (most / (gradient.norm() + 1e-6)).clamp(max=1)
    return scaled


def _clip(gradient: Tensor, most: float | None) -> Tensor:
    return gradient if most is None else _scale_to_norm(gradient, most)


@compiled
def _adam_update(
    weights: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    lr: Scalar,
    weight_decay: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return θ − η m̂ / (√v̂ + ε), and the new state."""
    count = state["count"] + 1
    rate, correction = lr / (1 - beta1**count), (1 - beta2**count) ** -0.5  # η / (1 − β₁ᵗ), and √v̂ / √v
    gradient = _add_decay(gradient, weights, weight_decay)
    mean = torch.lerp(state["mean"], gradient, _cast(1 - beta1, gradient))  # m
    square = torch.lerp(state["square"], gradient * gradient, _cast(1 - beta2, gradient))  # v
    offset = torch.full((), eps, dtype=gradient.dtype, device=gradient.device)
    root = torch.addcmul(offset, square.sqrt(), correction.to(gradient.dtype))
    updated = torch.addcdiv(weights, mean * -rate.to(gradient.dtype), root)
    return updated, {"mean": mean, "square": square, "count": count}


def _gradient_vector(gradient: Params, params: Params) -> Tensor:
    """Return the gradient as a vector, in the order of the weights."""
    return flat_vector(gradient if isinstance(gradient, FlatParams) else {name: gradient[name] for name in params})


def _requires_grad(number: Scalar) -> bool:
    return isinstance(number, Tensor) and number.requires_grad


def _counter(params: Params) -> Tensor:
    """Return a zero count in float64: with float32, 1 − β^t loses digits that matter in the first steps."""
    return next(iter(params.values())).new_zeros((), dtype=torch.float64)


def _add_decay(gradient: Tensor, weights: Tensor, weight_decay: Scalar) -> Tensor:
    """Return g + λθ."""
    if isinstance(weight_decay, float | int) and weight_decay == 0:
        return gradient
    decayed: Tensor = gradient + _cast(weight_decay, weights) * weights
    return decayed


def _cast(value: Scalar, leaf: Tensor) -> Any:
    """Cast a tensor to the dtype of the leaf. Python numbers stay as they are."""
    return value.to(leaf.dtype) if isinstance(value, Tensor) else value
