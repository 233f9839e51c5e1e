"""A network, and a model: the network with its weights filled in."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pogm._system.errors import UsageError
from pogm.core.batch import Batch
from pogm.core.compilation import compiled, inside_transform
from pogm.core.trees import Params

Penalty = Callable[["Model", Batch], Tensor | float]  # joins every domain's risk: [K], or 0
Risks = Callable[["Model", Batch], Tensor]  # every domain's risk: [K]


class Network(nn.Module):
    """A featurizer and a head, with further parts (a discriminator, say) by name."""

    def __init__(self, features: nn.Module, head: nn.Module, **parts: nn.Module):
        super().__init__()
        self.features = features
        self.head = head
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        """The logits; or what one part makes of its inputs."""
        if part is not None:
            result: Tensor = self.get_submodule(part)(*inputs)
            return result
        logits: Tensor = self.head(self.features(*inputs))
        return logits


class Model:
    """A network with a dictionary of weights filled in; ``buffers`` holds what its passes leave behind."""

    def __init__(
        self,
        network: nn.Module,
        params: Params,
        buffers: Params,
        *,
        autocast: torch.dtype | None = None,
        penalties: Sequence[Penalty] = (),
        replacement: Risks | None = None,
    ):
        self.network = network
        self.params = params
        self.buffers = buffers
        self.autocast = autocast
        self.penalties = penalties
        self.replacement = replacement

    def __call__(self, x: Tensor) -> Tensor:
        """The logits."""
        return self._run(x)

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return self._run(x, part="features")

    def head(self, z: Tensor) -> Tensor:
        """The logits of features."""
        return self._run(z, part="head")

    def part(self, name: str) -> Callable[..., Tensor]:
        """One further part of the network, as a function."""
        return partial(self._run, part=name)

    def losses(self, batch: Batch) -> Tensor:
        """The cross-entropy of every sample: [K, B]."""
        return cross_entropy(over_samples(self, batch.x), batch.y)

    def risks(self, batch: Batch) -> Tensor:
        """The risk of every domain, L_k: [K]. One pass over the pooled batch, as every method's text means it."""
        if self.replacement is not None:
            return self._with_penalties(self.replacement(self, batch), batch)
        weights = (self.network, dict(self.params), self.buffers)
        return self.penalised(_mean_losses(*weights, batch, self.autocast), batch)

    def risks_of(self, z: Tensor, batch: Batch) -> Tensor:
        """The same, for a method that has the features [K, B, n] of the batch already."""
        return self.penalised(cross_entropy(over_samples(self.head, z), batch.y).mean(1), batch)

    def penalised(self, risks: Tensor, batch: Batch) -> Tensor:
        """The cross-entropy risks, which a method has from its own logits, with what the modifiers add to them."""
        if self.replacement is not None:
            raise UsageError(
                "Expected an algorithm that takes risks as they come, for a modifier that replaces them; found one "
                "that computes them from its own logits or single samples. Leave the modifier out."
            )
        return self._with_penalties(risks, batch)

    def _with_penalties(self, risks: Tensor, batch: Batch) -> Tensor:
        for penalty in self.penalties:
            risks = risks + penalty(self, batch)
        return risks

    def _run(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        return _passed(self.network, dict(self.params), self.buffers, inputs, self.autocast, part)


@compiled
def _mean_losses(
    network: nn.Module, params: Params, buffers: Params, batch: Batch, autocast: torch.dtype | None
) -> Tensor:
    """The mean cross-entropy of every domain: [K]."""

    def logits(x: Tensor) -> Tensor:
        return _passed(network, params, buffers, (x,), autocast)

    return cross_entropy(over_samples(logits, batch.x), batch.y).mean(1)


@compiled
def _passed(
    network: nn.Module,
    params: Params,
    buffers: Params,
    inputs: tuple[Tensor, ...],
    autocast: torch.dtype | None,
    part: str | None = None,
) -> Tensor:
    """What the network, or one part of it, makes of its inputs with these weights."""
    options: dict[str, Any] = {} if part is None else {"part": part}
    inputs = tuple(_channels_last(x) for x in inputs)
    if autocast is None:
        result: Tensor = functional_call(network, (params, buffers), inputs, options)
        return result
    with torch.autocast(inputs[0].device.type, autocast):
        result = functional_call(network, (params, buffers), inputs, options)
    return result.float()


def _channels_last(x: Tensor) -> Tensor:
    """Images as a GPU's matrix units want them; a convolution hands the order on to the next."""
    images = isinstance(x, Tensor) and x.ndim == 4 and x.is_cuda  # a part may take numbers too
    mapped = inside_transform() and not torch.compiler.is_compiling()  # vmap knows no such order
    return x.contiguous(memory_format=torch.channels_last) if images and not mapped else x


def over_samples(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of [N, ...] to [K, B, ...] at once."""
    result = function(x.flatten(0, 1))
    return result.view(*x.shape[:2], *result.shape[1:])


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of logits [K, B, C] and labels, indices or probabilities: [K, B]."""
    pooled = F.cross_entropy(logits.flatten(0, 1), y.flatten(0, 1), reduction="none")
    return pooled.view(logits.shape[:2])


def probabilities(y: Tensor, num_classes: int) -> Tensor:
    """Labels as probabilities over the classes, whatever they were: [..., C]."""
    if y.is_floating_point():
        return y
    return (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).float()
