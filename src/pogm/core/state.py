"""The state of a run, and the value of a loss."""

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from pogm.core import random
from pogm.core.compilation import compiled
from pogm.core.optimizers import Optimizer
from pogm.core.trees import Params, Tree

Metrics = dict[str, Tensor]
TRAINED = "trained."  # prefix in the memory of weights that an algorithm trains in place of `State.params`


class Purpose(IntEnum):
    """Purpose of random numbers. Each purpose has its own stream."""

    DATA = 0
    MODIFIER = 1
    ALGORITHM = 2
    NETWORK = 3
    EVALUATION = 4


class Loss(NamedTuple):
    """Value of the objective, with metrics to report and tensors to keep in the state."""

    value: Tensor
    metrics: Metrics = {}  # noqa: RUF012  (the defaults of a tuple are never written to): to report
    memory: dict[str, Tensor] = {}  # noqa: RUF012  updates of State.memory
    buffers: Params = {}  # noqa: RUF012  updates of State.buffers


class State(NamedTuple):
    """Weights, optimizer state and memory of a run: everything that a step may change, as a tree of tensors.

    The field names are part of the checkpoint format.
    """

    params: Params
    buffers: Params  # buffers of the network, such as running statistics of batch norm
    optimizer: Tree
    memory: dict[str, Tensor]  # of the algorithm: moving averages, domain weights, counters
    step: Tensor  # int64: number of steps taken
    key: Tensor  # int64: random key of the run

    def random_key(self, purpose: Purpose, number: Tensor | int) -> Tensor:
        """Return the key for a purpose and the number of a step or minibatch."""
        return _random_key(self.key, int(purpose), number)

    def descend(self, gradient: Params, optimizer: Optimizer, loss: Loss) -> "State":
        """Return the state after one update of the optimizer."""
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
    return random.fold(key, purpose, number)
