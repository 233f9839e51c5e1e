"""Networks, and models: a network together with its weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.compilation import any_length, compiled, inside_transform, is_compiling_enabled
from pogm.core.losses import CROSS_ENTROPY, SampleLoss
from pogm.core.micro_batches import MicroBatches
from pogm.core.trees import Params

ALIGNMENT = 16  # bytes; what the compiler calls aligned
Penalty = Callable[["Model", Batch], Tensor | float]  # added to the risk of every domain: [K], or 0
Risks = Callable[["Model", Batch], Tensor]  # risk of every domain: [K]


class Network(nn.Module):
    """Featurizer and head, and optionally further named parts such as a discriminator."""

    def __init__(self, features: nn.Module, head: nn.Module, **parts: nn.Module):
        super().__init__()
        self.features = features
        self.head = head
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        """Return the logits, or the output of one part."""
        if part is not None:
            result: Tensor = self.get_submodule(part)(*inputs)
            return result
        logits: Tensor = self.head(self.features(*inputs))
        return logits


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode, without gradients, while the block runs. Then restore all modes."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


class Model:
    """A network with given weights and buffers.

    Args:
        network: Module that computes.
        params: Weights by name.
        buffers: Buffers by name. A pass in training mode writes to them, for example statistics of batch norm.
        autocast: Lower precision in which passes compute, if any.
        penalties: Functions of modifiers that are added to the risks.
        custom_risks: Function of a modifier that replaces the risks.
        loss: Loss of the task, as a function of outputs [K, B, ...] and targets [K, B, ...].
        tied_weights: False if no two layers share weights. A pass then skips the search for them, which takes long.
        micro_batches: How to divide the samples of a training pass to save memory; None for undivided passes.
    """

    def __init__(
        self,
        network: nn.Module,
        params: Params,
        buffers: Params,
        *,
        autocast: torch.dtype | None = None,
        penalties: Sequence[Penalty] = (),
        custom_risks: Risks | None = None,
        loss: SampleLoss = CROSS_ENTROPY,
        tied_weights: bool = True,
        micro_batches: MicroBatches | None = None,
    ):
        self.network = network
        self.params = params
        self.buffers = buffers
        self.autocast = autocast
        self.penalties = penalties
        self.custom_risks = custom_risks
        self.loss = loss
        self.tied_weights = tied_weights
        self.micro_batches = micro_batches

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self._run(x)

    def features(self, x: Tensor) -> Tensor:
        """Return the features, which are the inputs of the head."""
        return self._run(x, part="features")

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of features."""
        return self._run(z, part="head")

    def part(self, name: str) -> Callable[..., Tensor]:
        """Return a further part of the network as a function."""
        return partial(self._run, part=name)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sample: [K, B]."""
        return self.loss(over_samples(self, batch.x), batch.y)

    def risks(self, batch: Batch) -> Tensor:
        """Return the risk L_k of every domain: [K]. All domains share one pass through the network."""
        if self.custom_risks is not None:
            return self._with_penalties(self.custom_risks(self, batch), batch)
        if self.micro_batches is not None:
            return self.add_penalties(self.losses(batch).mean(1), batch)
        batch = trees.map_leaves(lambda leaf: any_length(leaf, 1), batch)
        with self._weights_in_network() as tensors:
            risks = _mean_losses(self.network, tensors, batch, self.autocast, self.loss, self.tied_weights)
        return self.add_penalties(risks, batch)

    def risks_from_features(self, z: Tensor, batch: Batch) -> Tensor:
        """Return the risk of every domain, given the features [K, B, n] of the batch."""
        return self.add_penalties(self.loss(over_samples(self.head, z), batch.y).mean(1), batch)

    def add_penalties(self, risks: Tensor, batch: Batch) -> Tensor:
        """Add the penalties of the modifiers to risks that an algorithm has computed itself: [K].

        Raises:
            UsageError: A modifier replaces the risks, so the algorithm must not compute its own.
        """
        if self.custom_risks is not None:
            raise UsageError(
                "Expected an algorithm that uses model.risks, for a modifier that replaces the risks, as CIRL and "
                "MIRO do; found one that computes risks from its own logits or from single samples. Leave the modifier "
                "out."
            )
        return self._with_penalties(risks, batch)

    def _with_penalties(self, risks: Tensor, batch: Batch) -> Tensor:
        for penalty in self.penalties:
            risks = risks + penalty(self, batch)
        return risks

    def _run(self, *inputs: Tensor, part: str | None = None) -> Tensor:
        def run(buffers: Params, *inputs: Tensor) -> Tensor:
            if torch.is_grad_enabled():  # a minibatch; evaluations have passes of one size
                inputs = tuple(any_length(x, 0) if isinstance(x, Tensor) else x for x in inputs)
            with self._weights_in_network(buffers) as tensors:
                return _forward(self.network, tensors, inputs, self.autocast, self.tied_weights, part)

        # A network with a forward pass of its own may combine samples there: only its featurizer is divided.
        divisible = part == "features" or (part is None and type(self.network).forward is Network.forward)
        if self.micro_batches is None or not divisible or not torch.is_grad_enabled():
            return run(self.buffers, *inputs)
        return self.micro_batches.run(run, self.buffers, *inputs)

    @contextmanager
    def _weights_in_network(self, buffers: Params | None = None) -> Iterator[Params | None]:
        """Put weights and buffers into the network while the block runs, then restore the network's own.

        This is `functional_call` with a fifth of its overhead, and outside of the compiled function, where the compiler
        would trace it for every weight. In a transform, and for networks with tied weights, nothing is replaced, and
        the tensors for `functional_call` are returned.
        """
        params = trees.map_leaves(_aligned, dict(self.params)) if is_compiling_enabled() else dict(self.params)
        tensors = params | (self.buffers if buffers is None else buffers)
        if self.tied_weights or inside_transform() or isinstance(self.network, torch.jit.ScriptModule):
            yield tensors
            return
        with _replaced(self.network, tensors):
            yield None


def _aligned(weight: Tensor) -> Tensor:
    """Return a weight at an aligned address, as a copy if necessary.

    The compiler assumes that the weights of a module never move: code that was compiled for aligned weights fails with
    others.
    """
    return weight.clone() if weight.is_cuda and not inside_transform() and weight.data_ptr() % ALIGNMENT else weight


@contextmanager
def _replaced(network: nn.Module, tensors: Params) -> Iterator[None]:
    """Replace weights and buffers of a network while the block runs."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    found: dict[str, nn.Module] = {"": network}  # by path
    try:
        for name, tensor in tensors.items():
            path, _, member = name.rpartition(".")
            if path not in found:
                found[path] = network.get_submodule(path)
            module = found[path]
            members: dict[str, Any] = module._parameters if member in module._parameters else module._buffers
            replaced.append((members, member, members[member]))
            members[member] = tensor
        yield
    finally:
        for members, member, tensor in replaced:
            members[member] = tensor


@compiled
def _mean_losses(
    network: nn.Module,
    tensors: Params | None,
    batch: Batch,
    autocast: torch.dtype | None,
    loss: SampleLoss,
    tied_weights: bool,
) -> Tensor:
    """Return the mean loss of every domain: [K]."""
    x = trees.map_leaves(lambda leaf: leaf.flatten(0, 1), batch.x)
    outputs = _forward(network, tensors, (x,), autocast, tied_weights)
    return loss.function(outputs, batch.y.flatten(0, 1)).view(batch.y.shape[:2]).mean(1)


@compiled
def _forward(
    network: nn.Module,
    tensors: Params | None,
    inputs: tuple[Tensor, ...],
    autocast: torch.dtype | None,
    tied_weights: bool,
    part: str | None = None,
) -> Tensor:
    """Run the network, or one part of it, with these weights and buffers; None for those in the network."""
    options: dict[str, Any] = {} if part is None else {"part": part}
    inputs = tuple(_channels_last(x) for x in inputs)
    call: Callable[..., Tensor] = network
    if tensors is not None:
        call = partial(_call_functional, network, tensors, tied_weights)
    if autocast is None:
        return call(*inputs, **options)
    with torch.autocast(trees.leaves(inputs)[0].device.type, autocast):
        return call(*inputs, **options).float()


def _call_functional(network: nn.Module, tensors: Params, tied: bool, *inputs: Tensor, **options: Any) -> Tensor:
    result: Tensor = functional_call(network, tensors, inputs, options, tie_weights=tied)
    return result


def _channels_last(x: Tensor) -> Tensor:
    """Convert images on a GPU to the channels-last format, which is faster. Convolutions keep the format."""
    are_images = isinstance(x, Tensor) and x.ndim == 4 and x.is_cuda  # a part may take Python numbers too
    in_vmap = inside_transform() and not torch.compiler.is_compiling()  # vmap does not support memory formats
    return x.contiguous(memory_format=torch.channels_last) if are_images and not in_vmap else x


def over_samples(function: Callable[[Any], Tensor], x: Any) -> Tensor:
    """Apply a function of [N, ...] to a tensor [K, B, ...] in one call. The inputs may be a tree of such tensors."""
    if isinstance(x, Tensor):
        result = function(x.flatten(0, 1))
        return result.view(*x.shape[:2], *result.shape[1:])
    result = function(trees.map_leaves(lambda leaf: leaf.flatten(0, 1), x))
    return result.view(*trees.leaves(x)[0].shape[:2], *result.shape[1:])
