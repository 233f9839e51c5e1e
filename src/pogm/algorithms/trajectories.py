"""What POGM and its neighbours share: every domain trains a copy, and the model moves along what the copies did."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyper import Choice, hyper
from pogm.core.optim import SGD, Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params, Tree
from pogm.pareto import agreement, alignment, angles, gramian, length

STILL = 1e-7  # a direction shorter than this share of the trajectories is rounding error


class Copies(NamedTuple):
    """Where training took a copy of the model; of all domains, stacked as [K, ...]."""

    trajectories: Params  # h_i = θ_i − θ
    optimizers: Tree
    buffers: Params
    losses: Tensor


class Aim(NamedTuple):
    """The direction of a round, and whether to trust it."""

    direction: Params  # d
    sound: Tensor  # [K]: which domains' trajectories are finite
    enough: Tensor  # whether these are enough to move
    still: Tensor  # whether d is nothing but rounding error
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Trajectories(Algorithm):
    """Methods that make one direction of the domains' trajectories.

    Each domain trains its own copy of the model for E minibatches, with an optimizer of its own that it keeps from
    round to round. How far that took it is its trajectory h_i. The model then moves along a combination d of them.
    """

    abstract: ClassVar[bool] = True

    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # alpha
    inner_steps: int = hyper(1, Choice(1, 5, 10), least=1, draw_as="pogm_local_steps")  # E
    inner_optimizer: str = hyper("adam", options=("adam", "sgd"))
    inner_state: str = hyper("persist", options=("persist", "reset"))  # between rounds, one per domain

    @property
    def minibatches(self) -> int:
        """E."""
        return self.inner_steps

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """What trains the copies."""
        return SGD(lr, weight_decay) if self.inner_optimizer == "sgd" else Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """One inner optimizer per domain."""
        state = super().start(params, buffers, key, problem)
        inner = {"domains": trees.repeat(state.optimizer, problem.num_domains)}
        return state._replace(optimizer=inner, memory={"skipped": torch.zeros_like(state.step)})

    def copies(self, state: State, batches: list[Batch], problem: Problem) -> Copies:
        """Every domain's copy after E minibatches: [K, ...]."""
        per_domain = (
            state.optimizer["domains"],
            trees.repeat(problem.live_buffers(state), problem.num_domains),
            random.split(self.random_key(state), problem.num_domains),
        )
        trained: Copies = problem.each_domain(partial(self.train_copy, state, problem), batches, *per_domain)
        return trained

    def train_copy(
        self, state: State, problem: Problem, batches: list[Batch], optimizer: Tree, live: Params, key: Tensor
    ) -> Copies:
        """Where E minibatches take a copy of the model."""
        copy, losses = state._replace(optimizer=optimizer, buffers=state.buffers | live, key=key), []
        for batch in batches:
            copy, metrics = super().step(copy, [batch], problem)
            losses.append(metrics["loss"])
        trajectory = trees.subtract(copy.params, state.params)  # h_i = θ_i − θ
        return Copies(trajectory, copy.optimizer, problem.live_buffers(copy), torch.stack(losses).mean())

    def matched(self, trajectories: Params) -> Params:
        """The weights that inner products are taken over: all that predict, but not a part that a modifier added."""
        return {name: leaf for name, leaf in trajectories.items() if name.startswith(("features.", "head."))}

    def finite(self, trajectories: Params, G: Tensor) -> Tensor:
        """Which trajectories are finite: those whose squared norm is, where that sees all of them."""
        if len(self.matched(trajectories)) == len(trajectories):
            return G.diagonal().isfinite()
        return torch.stack([leaf.isfinite().flatten(1).all(1) for leaf in trajectories.values()]).all(0)

    def moved(self, state: State, problem: Problem, copies: Copies, aim: Aim) -> tuple[State, Metrics]:
        """The state after the round, θ + α d; where that cannot be trusted, θ, and the round is counted as skipped."""
        moved = trees.move(state.params, aim.direction, self.meta_lr)
        accepted = aim.enough & trees.all_finite(moved)
        skipped = ~accepted | aim.still
        kept = aim.sound if self.inner_state == "persist" else torch.zeros_like(aim.sound)
        before = trees.repeat(problem.live_buffers(state), problem.num_domains)
        after = state._replace(
            params=trees.where(accepted, moved, state.params),
            buffers=state.buffers | trees.mean(trees.where(aim.sound & accepted, copies.buffers, before)),
            optimizer={"domains": trees.masked(kept, copies.optimizers)},  # a fresh optimizer is all zeros
            memory={"skipped": state.memory["skipped"] + skipped},
            step=state.step + 1,
        )
        metrics = {name: torch.where(accepted, value, torch.nan) for name, value in aim.metrics.items()}
        report = {"loss": copies.losses.mean(), "nonfinite": (~aim.sound).double(), "skipped": skipped.double()}
        return after, report | metrics


@dataclass(frozen=True)
class Weighted(Trajectories):
    """The neighbours of POGM: methods that differ in nothing but the weights c_i of d = Σ_i c_i h_i."""

    abstract: ClassVar[bool] = True

    def weights(self, G: Tensor, state: State) -> Tensor:
        """The weight of each trajectory, [K], from their inner products [K, K]."""
        raise NotImplementedError

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One round: every domain trains a copy, then the shared model moves."""
        copies = self.copies(state, batches, problem)
        G = gramian(self.matched(copies.trajectories))
        sound = self.finite(copies.trajectories, G)
        G = torch.where(sound.all(), G, 0.0)
        weights = self.weights(G, state)  # c_i
        direction = trees.combine(weights, trees.masked(sound, copies.trajectories))  # d = Σ c_i h_i
        metrics = {
            "weights": weights,
            "worst": alignment(G, weights).min(),
            "norm": length(G, weights),
            "agreement": agreement(G),
            "angle": angles(G, weights),
        }
        still = metrics["norm"] <= STILL * G.diagonal().mean().sqrt()
        return self.moved(state, problem, copies, Aim(direction, sound, sound.all(), still, metrics))
