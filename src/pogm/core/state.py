"""All that a step may change, and what a loss says."""

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from pogm.core import random
from pogm.core.compilation import compiled
from pogm.core.optimizers import Optimizer
from pogm.core.trees import Params, Tree

Metrics = dict[str, Tensor]


class Purpose(IntEnum):
    """What a run's random numbers are for; each has a stream of its own."""

    DATA = 0
    MODIFIER = 1
    ALGORITHM = 2
    NETWORK = 3
    EVALUATION = 4


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

    def random_key(self, purpose: Purpose, number: Tensor | int) -> Tensor:
        """The key of the random numbers for a purpose at a step, or for a minibatch."""
        return _random_key(self.key, int(purpose), number)

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


@compiled
def _random_key(key: Tensor, purpose: int, number: Tensor | int) -> Tensor:
    return random.fold(random.fold(key, purpose), number)
