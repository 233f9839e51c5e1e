"""What POGM and its neighbours share: every domain trains a copy, and the model moves along what the copies did."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled, known_true
from pogm.core.flat_params import flat_vector, flatten, unflatten
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.optimizers import SGD, Adam, Optimizer, Scalar, apply_reset, mark_for_reset
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trajectory_reduce import Blocks
from pogm.core.trees import Params, Tree
from pogm.pareto import agreement, alignment, angles, length

STILL = 1e-7  # a direction shorter than this share of the trajectories is rounding error


class Copies(NamedTuple):
    """Where training took a copy of the model; of all domains, stacked as [K, ...]."""

    trajectories: Params  # h_i = θ_i − θ
    optimizers: Tree
    buffers: Params
    losses: Tensor
    gradients: Params = {}  # noqa: RUF012  (never written to): of the last minibatch, if they are kept


class Aim(NamedTuple):
    """The direction of a round, and whether to trust it."""

    direction: Params  # d
    reach: Tensor  # what |d| is at most
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

    @property
    def spreads(self) -> tuple[str, ...]:
        """Copies do not see one another before their trajectories meet; each is trained by a mean over samples."""
        return "domains", "samples"

    @property
    def trains_pooled(self) -> bool:
        """True if one more copy is trained, on the minibatches of all domains."""
        return False

    def keeps_gradients(self, problem: Problem) -> bool:
        """True if the gradients of the copies are needed after the round, as well as their trajectories."""
        return False

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """What trains the copies."""
        return SGD(lr, weight_decay) if self.inner_optimizer == "sgd" else Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """One inner optimizer per domain."""
        state = super().start(params, buffers, key, problem)
        here = problem.reduce.local_rows(torch.arange(problem.num_domains))  # the others' take no memory
        fresh = Copies({}, state.optimizer, {}, state.step)
        every: Copies = problem.each_domain(lambda _: fresh, here)  # where what each domain keeps is kept
        inner = {"domains": every.optimizers}
        return state._replace(optimizer=inner, memory={"skipped": torch.zeros_like(state.step)})

    def copies(self, state: State, batches: list[Batch], problem: Problem) -> Copies:
        """Every domain's copy after E minibatches: [K, ...], or those of the domains that are trained here."""
        every = (
            trees.repeat(problem.live_buffers(state), problem.num_domains),
            random.split(self.random_key(state), problem.num_domains),
        )
        live, keys = problem.reduce.local_rows(every)

        def train(batches: list[Batch], optimizer: Tree, live: Params, key: Tensor) -> Copies:
            return self.train_copy(state, problem, batches, apply_reset(optimizer), live, key)

        trained: Copies = problem.each_domain(train, batches, state.optimizer["domains"], live, keys)
        return trained

    def train_copy(
        self, state: State, problem: Problem, batches: list[Batch], optimizer: Tree, live: Params, key: Tensor
    ) -> Copies:
        """Where E minibatches take a copy of the model."""
        copy, losses = state._replace(optimizer=optimizer, buffers=state.buffers | live, key=key), []
        keeps = self.keeps_gradients(problem)
        for batch in batches:
            gradient, loss = self.gradient(copy, batch, problem)
            if keeps:  # as one tensor, which is what the optimizer makes of it, too
                gradient = flatten({name: gradient[name] for name in copy.params})
            copy = copy.descend(gradient, problem.optimizer, loss)
            losses.append(loss.value)
        trajectory = trees.subtract(copy.params, state.params)  # h_i = θ_i − θ
        kept = gradient if keeps else {}
        return Copies(trajectory, copy.optimizer, problem.live_buffers(copy), torch.stack(losses).mean(), kept)

    def blocks(self, names: Iterable[str]) -> tuple[Blocks, Blocks]:
        """The weights that are matched: all that predict, as one block. And the others, if a modifier added some."""
        predicting, others = divided(names, ("features.", "head."))
        return (predicting,), (others,) if others else ()

    def moved(
        self, state: State, problem: Problem, copies: Copies, aim: Aim, optimizers: dict[str, Tree] | None = None
    ) -> tuple[State, Metrics]:
        """The state after the round, θ + α d; where that cannot be trusted, θ, and the round is counted as skipped.

        ``optimizers`` are those beside the domains' own.
        """
        params, accepted = _moved(
            flat_vector(state.params), flat_vector(aim.direction), self.meta_lr, aim.reach, aim.enough
        )
        buffers, losses = problem.reduce.all_gather((copies.buffers, copies.losses))
        before = trees.repeat(problem.live_buffers(state), problem.num_domains)
        kept = problem.reduce.local_rows(aim.sound if self.inner_state == "persist" else torch.zeros_like(aim.sound))
        skipped, report = _reported(aim, accepted, state.memory["skipped"], losses)
        after = state._replace(
            params=unflatten(params, state.params),
            buffers=state.buffers | trees.mean(trees.where(aim.sound & accepted, buffers, before)),
            optimizer={"domains": mark_for_reset(copies.optimizers, kept), **(optimizers or {})},
            memory={"skipped": skipped},
            step=state.step + 1,
        )
        return after, report


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
        matched, others = self.blocks(state.params)
        h = problem.reduce.gather(copies.trajectories)
        grams = problem.reduce.gramians(h, matched + others)
        sound = finite(grams)
        G = torch.where(sound.all(), grams[0], 0.0)
        weights = self.weights(G, state)  # c_i
        everywhere = weights.expand(len(grams), -1)
        direction = problem.reduce.weighted_sum(h, matched + others, everywhere, sound)  # d = Σ c_i h_i
        metrics = {
            "weights": weights,
            "worst": alignment(G, weights).min(),
            "norm": length(G, weights),
            "agreement": agreement(G),
            "angle": angles(G, weights),
        }
        still = metrics["norm"] <= STILL * G.diagonal().mean().sqrt()
        aim = Aim(direction, reach(grams, everywhere, sound), sound, sound.all(), still, metrics)
        return self.moved(state, problem, copies, aim)


def divided(names: Iterable[str], prefixes: str | tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that begin with one of the prefixes, and those that do not."""
    names = tuple(names)
    chosen = tuple(name for name in names if name.startswith(prefixes))
    return chosen, tuple(name for name in names if name not in chosen)


def finite(grams: Tensor) -> Tensor:
    """Which trajectories are finite, [K]: those whose squared norm is, in every block."""
    return grams.diagonal(dim1=-2, dim2=-1).isfinite().all(0)


def reach(grams: Tensor, weights: Tensor, sound: Tensor) -> Tensor:
    """What |d| is at most, Σ_i |c_i| |h_i|, over all blocks."""
    lengths = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return torch.where(sound, weights.abs() * lengths, 0).sum()


@compiled
def _moved(weights: Tensor, direction: Tensor, rate: Scalar, reach: Tensor, enough: Tensor) -> tuple[Tensor, Tensor]:
    """θ + α d and whether it can be trusted; θ itself if not.

    A step shorter than the distance between the largest numbers cannot leave the finite ones; one need not look.
    """
    kind = torch.finfo(weights.dtype)
    accepted = enough & (rate * reach <= kind.max * kind.eps / 8)
    moved = weights + (rate.to(weights.dtype) if isinstance(rate, Tensor) else rate) * direction
    return moved if known_true(accepted) else torch.where(accepted, moved, weights), accepted


@compiled
def _reported(aim: Aim, accepted: Tensor, skipped: Tensor, losses: Tensor) -> tuple[Tensor, Metrics]:
    """How many rounds were skipped so far, and what this one has to say."""
    skip = ~accepted | aim.still
    report = {"loss": losses.mean(), "nonfinite": (~aim.sound).double(), "skipped": skip.double()}
    metrics = {name: torch.where(accepted, value, torch.nan) for name, value in aim.metrics.items()}
    return skipped + skip, report | metrics
