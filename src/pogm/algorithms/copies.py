"""Copies of the model, each trained on the minibatches of one domain: the trajectories h_i and ERM's trajectory h_0."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.core.flat_params import FlatParams, flat_vector, flatten, unflatten
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.optimizers import SGD, Adam, Optimizer, Scalar, apply_reset
from pogm.core.problem import Objective, Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params, Tree


class Copies(NamedTuple):
    """Result of training one copy of the model, or of all domains' copies, stacked as [K, ...]."""

    trajectories: Params  # h_i = θ_i − θ
    optimizers: Tree
    buffers: Params
    losses: Tensor
    gradients: Params = {}  # noqa: RUF012  (never written to): of the last minibatch, if `keeps_gradients`


class Rows(NamedTuple):
    """Buffers for the large results of all copies, [K, P]: a copy in training writes to its row."""

    trajectories: FlatParams
    moments: dict[str, Tensor]  # of Adam


@dataclass(frozen=True, kw_only=True)
class DomainCopies(Algorithm):
    r"""Base class of methods in which every domain trains a copy of the model for E minibatches.

    The difference :math:`h_i = \theta_i - \theta` is the trajectory of the domain. Every copy has its own optimizer.
    Its state is kept between rounds, unless ``inner_state="reset"``.
    """

    abstract: ClassVar[bool] = True

    inner_steps: int = hyper(
        1, Choice(1, 5, 10), least=1, most=10_000, draw_as="pogm_local_steps"
    )  # E: minibatches of a copy in one round
    inner_optimizer: str = hyper("adam", options=("adam", "sgd"))  # optimizer of the copies
    inner_state: str = hyper("persist", options=("persist", "reset"))  # optimizer states of the copies between rounds

    @property
    def minibatches(self) -> int:
        """Minibatches of every domain in one round: E."""
        return self.inner_steps

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """Domains and samples can be divided among processes: copies are independent, losses are means over samples."""
        return "domains", "samples"

    @property
    def trains_pooled(self) -> bool:
        """True if one more copy is trained on the minibatches of all domains: ERM's trajectory, as the centre."""
        return False

    def keeps_gradients(self, problem: Problem) -> bool:
        """True if ERM's gradient is the mean of the copies' gradients, so that ERM's trajectory needs no further pass.

        With one inner step all gradients are computed at θ. If the samples of a pass depend on each other (by batch
        norm that is not frozen, or by a modifier such as MixStyle), the gradient of the pooled risk is not this mean.
        """
        return self.trains_pooled and self.inner_steps == 1 and not problem.couples_samples

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return the optimizer of the copies."""
        return SGD(lr, weight_decay) if self.inner_optimizer == "sgd" else Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the first state: one optimizer for each domain, and one for ERM's copy if there is one."""
        state = super().start(params, buffers, key, problem)
        local = problem.reduce.local_rows(torch.arange(problem.num_domains))  # domains trained by this process
        fresh = Copies({}, state.optimizer, {}, state.step)
        every: Copies = problem.each_domain(lambda _: fresh, local)
        optimizers = {"domains": every.optimizers}
        if self.trains_pooled:
            optimizers["erm"] = problem.optimizer.init(params)
        return state._replace(optimizer=optimizers, memory={"skipped": torch.zeros_like(state.step)})

    def copies(self, state: State, batches: list[Batch], problem: Problem) -> Copies:
        """Train the copies of the domains of this process for E minibatches: [K, ...]."""
        every = (
            trees.repeat(problem.live_buffers(state), problem.num_domains),
            random.split(self.random_key(state), problem.num_domains),
        )
        live, keys = problem.reduce.local_rows(every)

        def train(batches: list[Batch], optimizer: Tree, live: Params, key: Tensor) -> Copies:
            return self.train_copy(state, problem, batches, apply_reset(optimizer), live, key)

        optimizers = state.optimizer["domains"]
        if not (problem.passes_views and _can_overwrite(problem.optimizer, state.params)):
            trained: Copies = problem.each_domain(train, batches, optimizers, live, keys)
            return trained

        rows = _allocate_rows(state.params, optimizers)
        in_place = replace(problem, optimizer=replace(problem.optimizer, in_place=True))  # type: ignore[type-var]

        def train_in_row(batches: list[Batch], optimizer: Tree, live: Params, key: Tensor, row: Rows) -> Copies:
            before = apply_reset(optimizer)
            moments = {name: moment.copy_(before[name]) for name, moment in row.moments.items()}
            found = self.train_copy(state, in_place, batches, before | moments, live, key, row.trajectories)
            return found._replace(trajectories={}, optimizers={"count": found.optimizers["count"]})

        rest: Copies = problem.each_domain(train_in_row, batches, optimizers, live, keys, rows)
        return rest._replace(trajectories=rows.trajectories, optimizers=rows.moments | rest.optimizers)

    def train_copy(
        self,
        state: State,
        problem: Problem,
        batches: list[Batch],
        optimizer: Tree,
        live: Params,
        key: Tensor,
        out: FlatParams | None = None,
    ) -> Copies:
        """Train one copy of the model on E minibatches.

        Args:
            state: State before the round; gives the first weights.
            problem: Network, optimizer and differentiation.
            batches: E minibatches of one domain, or of all domains for ERM's copy.
            optimizer: Optimizer state of the copy.
            live: Batch-norm statistics that training updates.
            key: Random key of the copy.
            out: Where to write the trajectory; None to allocate it.
        """
        copy, losses = state._replace(optimizer=optimizer, buffers=state.buffers | live, key=key), []
        keeps = self.keeps_gradients(problem)
        for batch in batches:
            gradient, loss = self.gradient(copy, batch, problem)
            if keeps:  # flat, as the optimizer needs it too
                gradient = flatten({name: gradient[name] for name in copy.params})
            copy = copy.descend(gradient, problem.optimizer, loss)
            losses.append(loss.value)
        if out is None:
            trajectory = trees.subtract(copy.params, state.params)  # h_i = θ_i − θ
        else:
            torch.sub(flat_vector(copy.params), flat_vector(state.params), out=out.flat)
            trajectory = out
        kept = gradient if keeps else {}
        return Copies(trajectory, copy.optimizer, problem.live_buffers(copy), torch.stack(losses).mean(), kept)

    def erm_trajectory(
        self, state: State, batches: list[Batch], problem: Problem, copies: Copies
    ) -> tuple[Params, Tree]:
        """Return ERM's trajectory h_0 = θ_ERM − θ after the same E minibatches, and its optimizer state."""
        optimizer = apply_reset(state.optimizer["erm"])
        if self.keeps_gradients(problem):
            gradient = problem.reduce.average_gradient(trees.map_numbers(_mean, copies.gradients))
            params, optimizer = problem.optimizer.update(state.params, gradient, optimizer)
            return unflatten(_difference(flat_vector(params), flat_vector(state.params)), state.params), optimizer
        live, key = problem.live_buffers(state), self.random_key(state, 1)
        pooled = self.train_copy(state, replace(problem, gradient=_pooled(problem)), batches, optimizer, live, key)
        return pooled.trajectories, pooled.optimizers


def _can_overwrite(optimizer: Optimizer, params: Params) -> bool:
    return type(optimizer) is Adam and optimizer.can_overwrite(params)


def _allocate_rows(params: Params, optimizers: Tree) -> Rows:
    assert isinstance(params, FlatParams)
    moments = {name: torch.empty_like(moment) for name, moment in optimizers.items() if name != "count"}
    trajectories = params.flat.new_empty((len(optimizers["count"]), len(params.flat)))
    return Rows(params.like(trajectories), moments)


def _pooled(problem: Problem) -> Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]:
    """Return the gradient of the pooled risk: over the samples of this process, averaged over processes."""

    def gradient(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
        def over_all(params: Params) -> tuple[Params, Loss]:
            local, loss = problem.gradient(objective)(params)
            return problem.reduce.average_gradient(local), loss

        return over_all

    return gradient


@compiled
def _mean(rows: Tensor) -> Tensor:
    """Return the mean over the first axis, summed in order: the same bits for any distribution over processes."""
    total = rows[0]
    for row in rows[1:].unbind():
        total = total + row
    return total / rows.shape[0]


@compiled
def _difference(after: Tensor, before: Tensor) -> Tensor:
    return after - before
