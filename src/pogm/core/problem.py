"""What the engine hands an algorithm: the network, the optimizer, and how to differentiate and go over domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from pogm.core import random
from pogm.core.model import Model, Penalty, Risks
from pogm.core.optimizers import Optimizer
from pogm.core.random_layers import key_buffers
from pogm.core.state import Loss, Purpose, State
from pogm.core.trajectory_reduce import Local, TrajectoryReduce
from pogm.core.trees import Params, Tree

Objective = Callable[[Params], Loss]


class EachDomain(Protocol):
    """Apply a function to every domain and stack what it returns along a leading axis K.

    ``function(batches, *others)`` gets the domain's minibatches, with K = 1, and its slice of the other trees.
    """

    def __call__(self, function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
        """Every domain's result, stacked."""


@dataclass(frozen=True)
class Problem:
    """Scale enters here, and only here: a method written against it runs alone, batched or over ranks."""

    network: nn.Module
    optimizer: Optimizer
    num_domains: int  # K
    num_classes: int  # C
    gradient: Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]
    each_domain: EachDomain
    reduce: TrajectoryReduce = Local()  # noqa: RUF009  (frozen)
    penalties: Sequence[Penalty] = ()
    replacement: Risks | None = None  # of the cross-entropy, by a modifier
    autocast: torch.dtype | None = None
    live: frozenset[str] = field(default_factory=frozenset)  # buffers that a training pass writes to
    mixes: bool = False  # whether a modifier lets the samples of a pass see one another

    @property
    def coupled(self) -> bool:
        """True if the risk of a sample depends on which others are in the pass: live batch norm, or a modifier.

        The gradient of a pooled risk is then not the mean of the gradients of its parts.
        """
        return bool(self.live) or self.mixes

    def model(self, params: Params, state: State) -> Model:
        """The network with these weights and the state's buffers: cloned where a pass would write to them.

        Its random layers get the keys of this step.
        """
        buffers = {n: b.clone() if n in self.live else b for n, b in state.buffers.items()}
        for place, name in enumerate(self.keys):
            buffers[name] = random.fold(state.random_key(Purpose.NETWORK, state.step), place)
        return Model(
            self.network,
            params,
            buffers,
            autocast=self.autocast,
            penalties=self.penalties,
            replacement=self.replacement,
        )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The buffers that hold the keys of the network's random layers."""
        return key_buffers(self.network)

    def live_buffers(self, holder: State | Model) -> Params:
        """The buffers that training passes write to: what a model's left there, or a state's."""
        return {name: holder.buffers[name] for name in sorted(self.live)}


def live_buffers(network: nn.Module) -> frozenset[str]:
    """The names of the batch-norm statistics that a pass in training mode updates."""
    modules: dict[str, Any] = dict(network.named_modules())
    norms = {n: m for n, m in modules.items() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    return frozenset(
        f"{name}.{buffer}" if name else buffer
        for name, norm in norms.items()
        if norm.training and norm.track_running_stats
        for buffer, _ in norm.named_buffers()
    )
