"""All that a step may change, and what a loss says."""

from typing import NamedTuple

from torch import Tensor

from pogm.core.optim import Optimizer
from pogm.core.trees import Params, Tree

Metrics = dict[str, Tensor]


class Loss(NamedTuple):
    """What is minimised, with what it wants reported and remembered."""

    value: Tensor
    metrics: Metrics = {}  # noqa: RUF012  (a tuple's default is never written to)
    memory: dict[str, Tensor] = {}  # noqa: RUF012
    buffers: Params = {}  # noqa: RUF012


class State(NamedTuple):
    """Weights, optimizer and memory of a run: a tree of tensors, to be mapped, copied and saved."""

    params: Params
    buffers: Params  # running statistics of batch-norm layers that are not frozen
    optimizer: Tree
    memory: dict[str, Tensor]  # what a method keeps: moving averages, domain weights, counters
    step: Tensor  # int64: steps taken
    key: Tensor  # int64: the key of the run's random numbers

    def descend(self, gradient: Params, optimizer: Optimizer, loss: Loss) -> "State":
        """The state after one optimizer update along a gradient."""
        params, state = optimizer.update(self.params, gradient, self.optimizer)
        return self._replace(
            params=params,
            buffers=self.buffers | loss.buffers,
            optimizer=state,
            memory=self.memory | loss.memory,
            step=self.step + 1,
        )
