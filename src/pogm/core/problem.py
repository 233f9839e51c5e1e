"""Everything an algorithm needs from the engine: network, optimizer, differentiation, and loops over domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from pogm.core import random
from pogm.core.losses import CROSS_ENTROPY, SampleLoss
from pogm.core.micro_batches import MicroBatches
from pogm.core.model import Model, Penalty, Risks
from pogm.core.optimizers import Optimizer
from pogm.core.random_layers import key_buffers
from pogm.core.state import Loss, Purpose, State
from pogm.core.trajectory_reduce import Local, TrajectoryReduce
from pogm.core.trees import Params, Tree

Objective = Callable[[Params], Loss]


class EachDomain(Protocol):
    """Apply a function to every domain and stack the results along a leading axis K.

    ``function(batches, *others)`` receives the minibatches of one domain, with K = 1, and one row of every other tree.
    """

    def __call__(self, function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
        """Return the stacked results of all domains."""


@dataclass(frozen=True)
class Problem:
    """Training problem of one run, as an algorithm sees it.

    The engine chooses how gradients are computed, how domains are looped over and where trajectories are reduced. An
    algorithm that uses only this interface runs unchanged as one trial, in a batch of trials, and on several processes.
    """

    network: nn.Module
    optimizer: Optimizer
    num_domains: int  # K
    num_classes: int  # C; for losses without classes, the number of outputs
    gradient: Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]  # objective -> (weights -> gradient, loss)
    each_domain: EachDomain
    passes_views: bool = False  # True if `each_domain` is a loop that passes rows as views, which may be overwritten
    reduce: TrajectoryReduce = Local()  # noqa: RUF009  (frozen)
    penalties: Sequence[Penalty] = ()  # of modifiers, added to the risks
    custom_risks: Risks | None = None  # risk that a modifier uses instead of the mean loss
    autocast: torch.dtype | None = None  # lower precision in which passes compute, if any
    live: frozenset[str] = field(default_factory=frozenset)  # names of buffers that a training pass updates
    mixes: bool = False  # True if a modifier mixes the samples of a pass
    loss: SampleLoss = CROSS_ENTROPY
    micro_batches: MicroBatches | None = None  # how to divide passes to save memory
    phase: int | None = None  # `Algorithm.phase_at` of the current step; None if it is not known or there are no phases

    @property
    def couples_samples(self) -> bool:
        """True if the risk of a sample depends on the other samples of the pass: unfrozen batch norm, or a modifier.

        The gradient of a pooled risk is then not the mean of the gradients of its parts.
        """
        return bool(self.live) or self.mixes

    def model(self, params: Params, state: State) -> Model:
        """Return the network with these weights and the buffers of the state.

        Buffers that a pass updates are cloned. Random layers get the keys of this step.
        """
        buffers = {n: b.clone() if n in self.live else b for n, b in state.buffers.items()}
        for index, name in enumerate(self.keys):
            buffers[name] = random.fold(state.random_key(Purpose.NETWORK, state.step), index)
        return Model(
            self.network,
            params,
            buffers,
            autocast=self.autocast,
            penalties=self.penalties,
            custom_risks=self.custom_risks,
            loss=self.loss,
            tied_weights=self.tied_weights,
            micro_batches=self.micro_batches,
        )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Names of the buffers that hold the keys of random layers."""
        return key_buffers(self.network)

    @cached_property
    def tied_weights(self) -> bool:
        """True if two layers of the network share weights or buffers."""
        members = self.network.named_parameters, self.network.named_buffers
        return any(len(list(named(remove_duplicate=False))) != len(list(named())) for named in members)

    def live_buffers(self, holder: State | Model) -> Params:
        """Return the buffers that training passes update, of a model or a state."""
        return {name: holder.buffers[name] for name in sorted(self.live)}


def live_buffers(network: nn.Module) -> frozenset[str]:
    """Return the names of the batch-norm statistics that a pass in training mode updates."""
    modules: dict[str, Any] = dict(network.named_modules())
    norms = {n: m for n, m in modules.items() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    return frozenset(
        f"{name}.{buffer}" if name else buffer
        for name, norm in norms.items()
        if norm.training and norm.track_running_stats
        for buffer, _ in norm.named_buffers()
    )
