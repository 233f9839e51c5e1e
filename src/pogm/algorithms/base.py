"""The base class of all algorithms: `step` calls `gradient`, and `gradient` calls `loss`.

An algorithm overrides the simplest of the three that can express it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError, unknown_name_error
from pogm._system.moved import check_attributes
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import replace_fields, validate
from pogm.core.model import Model, Network
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, Purpose, State
from pogm.core.trees import Params

MakeFeatures = Callable[[tuple[int, ...]], tuple[nn.Module, int]]
"""Builds a featurizer for inputs of a shape (C, H, W); returns the module and the number of its outputs."""


@dataclass(frozen=True)
class Algorithm:
    """A domain-generalization method: its hyperparameters (the fields) and one update of the weights (`step`).

    An instance never changes. Everything that a method keeps between steps is in the `State`. A step must be a pure
    function of the state and the minibatches, so that it can be vectorised over trials, captured in a CUDA graph and
    resumed from a checkpoint.
    """

    min_domains: ClassVar[int] = 1  # least number of training domains; most methods equal ERM with one domain
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named sets of hyperparameters
    former_fields: ClassVar[dict[str, Any]] = {}  # removed hyperparameters that saved trials still contain
    replaced: ClassVar[dict[str, str]] = {}  # former names of hyperparameters and presets -> what replaced them
    needs_classes: ClassVar[bool] = False  # True if the method uses class labels, so that only cross-entropy fits
    prediction_batch_size: ClassVar[int] = 0  # images of one domain that are predicted together; 0: each one alone
    sees_at_test: ClassVar[str] = ""  # what it uses at test time besides the image itself, in words; tables show it

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_attributes(cls)

    def __post_init__(self) -> None:
        validate(self)

    @classmethod
    def preset(cls, name: str, **values: Any) -> Self:
        """Return the method with the hyperparameters of a preset, and with ``values`` in place of some of them."""
        if name in cls.replaced:
            raise UsageError(f"Expected a preset of {cls.__name__}; {name!r} was replaced by {cls.replaced[name]}.")
        if name not in cls.presets:
            raise unknown_name_error(f"a preset of {cls.__name__}", name, cls.presets)
        result: Self = replace_fields(cls(**cls.presets[name]), values)
        return result

    # Override one of these three.

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the objective; by default the mean risk over domains."""
        return Loss(model.risks(batch).mean())

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the gradient of the objective with respect to the parameters, and the loss."""

        def objective(params: Params) -> Loss:
            model = problem.model(params, state)
            loss = _check_loss(self.loss(model, batch, state), type(self).__name__)
            return loss._replace(buffers=problem.live_buffers(model))

        return problem.gradient(objective)(state.params)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Return the state after one update, and the metrics to record.

        Args:
            state: Parameters, buffers, optimizer state, memory of the method, step and random key.
            batches: `minibatches` minibatches, each with inputs [K, B, ...] and labels [K, B] of all K domains.
            problem: The network, the optimizer, and functions for gradients and for work on every domain.
        """
        state = self._restart_optimizer(state, problem)
        gradient, loss = self.gradient(state, batches[0], problem)
        return state.descend(gradient, problem.optimizer, loss), {"loss": loss.value, **loss.metrics}

    # Most methods keep these defaults.

    @property
    def minibatches(self) -> int:
        """Number of minibatches of each domain that one step uses."""
        return 1

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """Axes that processes may divide without changing the result: "domains", "samples", both or none."""
        return ()

    def featurizer(self, make: MakeFeatures, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the featurizer for inputs of a shape and the number of its outputs, using ``make`` to build it."""
        return make(shape)

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Return the network: a featurizer with ``width`` outputs, a classifier, and other parts if needed."""
        return Network(features, nn.Linear(width, num_classes))

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return the optimizer; by default Adam on all parameters."""
        return Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the state before the first step. Methods with memory add it here."""
        step = torch.zeros((), dtype=torch.int64, device=key.device)
        return State(params, buffers, problem.optimizer.init(params), {}, step, key)

    def restart_at(self) -> Scalar | tuple[Scalar, ...] | None:
        """Return the step, or steps, at which the optimizer is reset because the loss changes there; None for never."""
        return None

    def _restart_optimizer(self, state: State, problem: Problem) -> State:
        """Reset the optimizer state at step `restart_at`."""
        when = self.restart_at()
        if when is None:
            return state
        for step in when if isinstance(when, tuple) else (when,):
            fresh = problem.optimizer.init(state.params)
            state = state._replace(optimizer=trees.where(state.step == step, fresh, state.optimizer))
        return state

    def phase_at(self, step: int) -> int | None:
        """Return the phase of a step, for methods whose phases do different work; None for methods without phases.

        A step reads its phase from `Problem.phase`, by an ``if`` in Python, and computes only the work of this phase.
        The engine records one CUDA graph for each phase. Steps of all phases must return the same fields of the state
        and the same metrics. If `Problem.phase` is None, the caller does not know the phase: the step must then compute
        the work of all phases and choose by ``state.step`` with `torch.where`. `GGA` is an example.

        Args:
            step: Number of steps before this one, as in ``state.step``. The result may also depend on hyperparameters
                that are not floats; these are equal for all trials of a batch.
        """
        return None

    def random_key(self, state: State, purpose: int = 0) -> Tensor:
        """Return the key for random numbers of this step; each ``purpose`` has independent numbers."""
        return random.fold(state.random_key(Purpose.ALGORITHM, state.step), purpose)

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """Return logits at test time. With `prediction_batch_size`, x has at most that many images of one domain."""
        return model(x)


def _check_loss(loss: Any, name: str) -> Loss:
    """Return what `loss` of an algorithm returned; raise a `UsageError` unless it is a scalar, with tensors as metrics.

    Args:
        loss: What it returned.
        name: Name of the algorithm.
    """
    if not isinstance(loss, Loss) or not isinstance(loss.value, Tensor) or loss.value.ndim:
        value, of = (loss.value, "a Loss of ") if isinstance(loss, Loss) else (loss, "")
        shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
        raise UsageError(
            f"Expected a Loss of a scalar tensor from {name}.loss; found {of}a {type(value).__name__}{shape}. Return "
            "Loss(objective, metrics)."
        )
    for metric, found in loss.metrics.items():
        if not isinstance(found, Tensor):
            raise UsageError(
                f"Expected tensors as metrics from {name}.loss; found {metric}, a {type(found).__name__}. Return a "
                "tensor, without item()."
            )
    return loss
