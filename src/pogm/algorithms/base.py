"""The ladder: loss, gradient, step. A method overrides the lowest rung that can express it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError, unknown
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import changed, validate
from pogm.core.model import Model, Network
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, Purpose, State
from pogm.core.trees import Params

MakeFeatures = Callable[[tuple[int, int, int]], tuple[nn.Module, int]]  # of images of a shape: module and outputs


@dataclass(frozen=True)
class Algorithm:
    """A domain-generalization method: its hyperparameters, and one update of the weights.

    An instance is data and never changes; all that a method keeps between steps is in the ``State``.
    """

    min_domains: ClassVar[int] = 1  # training domains; with one, most methods are ERM
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    former_fields: ClassVar[dict[str, Any]] = {}  # removed hyperparameters that saved trials still contain
    replaced: ClassVar[dict[str, str]] = {}  # former names of hyperparameters and presets, with what replaced them
    predicts_by: ClassVar[int] = 0  # images of one domain that are predicted together, if their company matters

    def __post_init__(self) -> None:
        validate(self)

    @classmethod
    def preset(cls, name: str, **values: Any) -> Self:
        """The method with a named set of hyperparameters, some of them changed."""
        if name in cls.replaced:
            raise UsageError(f"Expected a preset of {cls.__name__}; {name!r} was replaced by {cls.replaced[name]}.")
        if name not in cls.presets:
            raise unknown(f"a preset of {cls.__name__}", name, cls.presets)
        result: Self = changed(cls(**cls.presets[name]), values)
        return result

    # The three rungs.

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """What is minimised."""
        return Loss(model.risks(batch).mean())

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Which way to go."""

        def objective(params: Params) -> Loss:
            model = problem.model(params, state)
            loss = self.loss(model, batch, state)
            return loss._replace(buffers=problem.live_buffers(model))

        return problem.gradient(objective)(state.params)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """How the weights get there; one minibatch of every domain, or as many as ``minibatches`` says."""
        state = self.restarted(state, problem)
        gradient, loss = self.gradient(state, batches[0], problem)
        return state.descend(gradient, problem.optimizer, loss), {"loss": loss.value, **loss.metrics}

    # The rest has a default that most methods keep.

    @property
    def minibatches(self) -> int:
        """How many minibatches of each domain one step takes."""
        return 1

    @property
    def spreads(self) -> tuple[str, ...]:
        """What of a round many processes may divide among them without changing it: "domains", "samples"."""
        return ()

    def featurizer(self, make: MakeFeatures, shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """The featurizer for images of a shape, and the number of its outputs; ``make`` makes one for any shape."""
        return make(shape)

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """The network around a featurizer with ``width`` outputs."""
        return Network(features, nn.Linear(width, num_classes))

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """What descends: one Adam over all weights."""
        return Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """The state before the first step."""
        step = torch.zeros((), dtype=torch.int64, device=key.device)
        return State(params, buffers, problem.optimizer.init(params), {}, step, key)

    def restart_at(self) -> Scalar | None:
        """The step before which the optimizer forgets, for methods whose loss jumps there."""
        return None

    def restarted(self, state: State, problem: Problem) -> State:
        """The state with a fresh optimizer, if this is the step for it."""
        when = self.restart_at()
        if when is None:
            return state
        fresh = problem.optimizer.init(state.params)
        return state._replace(optimizer=trees.where(state.step == when, fresh, state.optimizer))

    def random_key(self, state: State, purpose: int = 0) -> Tensor:
        """The key for this step's random numbers."""
        return random.fold(state.random_key(Purpose.ALGORITHM, state.step), purpose)

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """The logits at test time; where ``predicts_by`` is set, of that many images of one domain, or fewer."""
        return model(x)
