"""Weight averages: a running average of the weights, which is evaluated in place of the current weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pogm.core.batch import Batch
from pogm.core.flat_params import flat_vector, unflatten
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class WeightAverage(Modifier):
    r"""Base class of running averages of the weights.

    .. math:: \bar\theta_t = \bar\theta_{t-1} + r_t (\theta_t - \bar\theta_{t-1}), \qquad \bar\theta_0 = \theta_0

    A subclass defines the rates :math:`r_t`. All weights are averaged, including those that are not used for
    prediction, and so are the statistics of batch norm that is not frozen. The memory is one copy of them.
    """

    abstract: ClassVar[bool] = True  # a base class; not registered
    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")
    changes_training: ClassVar[bool] = False

    def rate(self, step: Tensor) -> Tensor:
        """Return the rate r_t of the weights after ``step`` steps, a float64 scalar."""
        raise NotImplementedError

    def start(self, state: State, problem: Problem) -> Tree:
        """Return a copy of the initial weights and batch-norm statistics."""
        statistics = {name: leaf.clone() for name, leaf in live_statistics(state, problem).items()}
        return {"weights": flat_vector(state.params).clone(), "statistics": statistics}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Move the average towards the weights after this step."""
        return interpolate(memory, state, self.rate(state.step)), state

    def evaluated(self, memory: Tree, state: State) -> State:
        """Return the state with the averages."""
        params = unflatten(memory["weights"], state.params)
        return state._replace(params=params, buffers=state.buffers | memory["statistics"])


def interpolate(memory: Tree, state: State, rate: Tensor) -> Tree:
    """Return the weights and statistics (1 − rate) · memory + rate · state, in the form of the memory."""
    statistics = {name: _lerp(leaf, state.buffers[name], rate) for name, leaf in memory["statistics"].items()}
    return {"weights": _lerp(memory["weights"], flat_vector(state.params), rate), "statistics": statistics}


def live_statistics(state: State, problem: Problem) -> Params:
    """Return the running means and variances of batch norm that is not frozen, without its counters."""
    return {name: leaf for name, leaf in problem.live_buffers(state).items() if leaf.is_floating_point()}


def _lerp(average: Tensor, newest: Tensor, rate: Tensor) -> Tensor:
    """Return average + rate · (newest − average); exactly the newest for rate 1."""
    return torch.lerp(average, newest, rate.to(average.dtype))
