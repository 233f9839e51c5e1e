"""Micro-batches: training passes that keep the activations of only a few samples in memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.compilation import compiling, inside_transform, is_compiling_enabled
from pogm.core.random_layers import Dropout, RandomLayer
from pogm.core.trees import Params


@dataclass(frozen=True)
class MicroBatches:
    """Division of the samples of a training pass into micro-batches.

    A micro-batch does not keep its activations. The backward pass computes them again, one micro-batch after the other
    (activation checkpointing). The loss gets the outputs of all samples, so methods that compare samples or domains
    give the same results, too, up to rounding.
    """

    size: int  # samples
    dropout_layers: tuple[str, ...] = ()  # names of the layers, which get the index of the first sample

    @classmethod
    def for_network(cls, network: nn.Module, size: int) -> Self:
        """Return the division of the passes of a network.

        Raises:
            UsageError: The output of the network for a sample may depend on the other samples of the pass.
        """
        modules = dict(network.named_modules())
        for name, module in modules.items():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                reason = f"the batch norm {name}, which is not frozen. Set freeze_bn=true if it is off, or leave"
            elif isinstance(module, RandomLayer) and not isinstance(module, Dropout):
                reason = f"{name} ({type(module).__name__}), which draws random numbers for a whole pass. Leave"
            else:
                continue
            raise UsageError(
                "Expected a network that treats every sample separately, for micro-batches; found "
                f"{reason} --micro-batch out."
            )
        return cls(size, tuple(name for name, module in modules.items() if isinstance(module, Dropout)))

    def run(self, function: Callable[..., Tensor], buffers: Params, x: Any) -> Tensor:
        """Return ``function(buffers, x)`` for samples x [N, ...], or a tree of such tensors.

        Raises:
            UsageError: The pass is inside a transform of ``torch.func``, which cannot compute activations again.
        """
        if inside_transform():
            raise UsageError(
                "Expected a method that differentiates the network once, by problem.gradient, for micro-batches; found "
                "a pass inside torch.func.grad or vmap. Leave --micro-batch out, or choose another method."
            )
        enabled = is_compiling_enabled()

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), compiling(enabled)  # on a GPU, the backward pass has its own thread

        def run_part(first: int) -> Tensor:
            part = trees.map_leaves(lambda leaf: leaf[first : first + self.size], x)
            start = torch.full((), first, device=trees.leaves(part)[0].device)
            names = {f"{layer}.first": start for layer in self.dropout_layers}
            result: Tensor = checkpoint(
                function, buffers | names, part, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
            return result

        return torch.cat([run_part(first) for first in range(0, len(trees.leaves(x)[0]), self.size)])
