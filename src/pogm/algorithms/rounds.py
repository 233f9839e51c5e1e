"""Methods on trajectories: every domain trains a copy of the model, then the model moves along a combination of the
trajectories. POGM, Reptile, MGDA, CAGrad, PCGrad, UPGrad and others differ only in `direction`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.copies import Copies, DomainCopies
from pogm.algorithms.partition import partition_weights
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled, known_true
from pogm.core.flat_params import FlatParams, flat_vector, unflatten
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.optimizers import Scalar, mark_for_reset
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trajectory_reduce import GatheredTrajectories, Local
from pogm.core.trees import Params, Tree
from pogm.pareto import Solution, agreement, alignment, cosines, length
from pogm.pareto.interior import has_kernel
from pogm.pareto.problem import Centre
from pogm.pareto.solution import EXACT

ZERO = 1e-7  # a direction shorter than this fraction of the trajectories is rounding error
FORMER_OPTIONS = {  # options and presets of POGM in earlier versions, and what replaced them
    "scope": "partition: partition=classifier was scope=classifier",
    "granularity": "partition: partition=layer was granularity=layer",
    "erm_direction": "centre: centre=erm was erm_direction=pooled",
    "convention": "an algorithm: PaperTextPOGM; for the radius √κ‖h_0‖ in both places set kappa to √κ",
    "solver": "an algorithm: OfficialPOGM",
    "stationary": "an argument of pogm.pareto.solve",
    "official": "an algorithm: OfficialPOGM",
    "paper_text": "an algorithm: PaperTextPOGM",
    "nonfinite": "nothing: a round with a trajectory that is not finite is always skipped",
}


class Direction(NamedTuple):
    """Direction d = Σ_i c_i h_i of a round, given by its weights c."""

    weights: Tensor  # c: [..., K], one row for each block of the partition; without the weight 1 of ERM's trajectory
    metrics: Metrics
    rescale: bool = False  # scale d to the length of the centre


class Decision(NamedTuple):
    """Weights of all trajectories in all blocks, with the checks that precede an update."""

    weights: Tensor  # c: [blocks, N]
    bound: Tensor  # upper bound of |d|
    finite: Tensor  # [N]: True for trajectories without NaN and infinity
    is_zero: Tensor  # True if the direction is only rounding error
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class DomainRounds(DomainCopies):
    r"""Base class of methods that combine the trajectories of all domains.

    One round, with K domains:

    1. Every domain trains a copy of the model for E minibatches, with its own optimizer.
       Its displacement :math:`h_i = \theta_i - \theta` is the trajectory of the domain.
    2. The inner products :math:`h_i^\top h_j` are computed; `direction` needs only these.
    3. `direction` returns weights :math:`c_i`, and the model moves:
       :math:`\theta \leftarrow \theta + \alpha \sum_i c_i h_i`.

    A round with a trajectory that is not finite, or an update that could overflow, is skipped and counted.
    """

    abstract: ClassVar[bool] = True
    compiles_direction: ClassVar[bool] = False  # compile `direction` and its metrics, if the solver is a few kernels

    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # α: step size of the update
    partition: str = hyper("all", options=("all", "classifier", "block", "layer"), added_later=True)
    # "all": one problem for all weights. "classifier": one for the last layers; other weights follow the centre.
    # "block", "layer": one problem for each block or layer of the network.

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Choose the weights of the trajectories.

        Args:
            gram: Inner products h_i·h_j of the K domains, [..., K, K]: one matrix for each block of the partition.
            centre: Inner products (h_i·h_0, ‖h_0‖²) of ERM's trajectory h_0, if `trains_pooled`. The weights are then
                added to h_0: d = h_0 + Σ_i c_i h_i.
            state: Step, random key and memory, for methods that draw random numbers or keep something.
        """
        raise NotImplementedError

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Run one round: train the copies, form the Gramian, choose the direction, move the model."""
        return self.combine(state, batches, problem, self.copies(state, batches, problem))  # h_i: [K, ...]

    def combine(self, state: State, batches: list[Batch], problem: Problem, copies: Copies) -> tuple[State, Metrics]:
        """Return the state after the part of a round that follows the training of the copies, and the metrics."""
        centre, erm_optimizer = (
            self.erm_trajectory(state, batches, problem, copies) if self.trains_pooled else (None, {})
        )

        matched, others = partition_weights(state.params, self.partition, type(self).__name__)
        h = problem.reduce.gather(copies.trajectories, centre)
        grams = problem.reduce.gramians(h, matched + others)  # h_i·h_j: [blocks, N, N]; h_0 is the last row, if any
        compile_now = self.compiles_direction and (problem.num_domains <= EXACT or has_kernel(grams))
        decide = self._decide_compiled if compile_now else self._decide
        decision = Decision(*decide(grams, len(matched), State({}, {}, {}, state.memory, state.step, state.key)))
        direction = problem.reduce.weighted_sum(h, matched + others, decision.weights, decision.finite)  # d = Σ c_i h_i

        optimizers = {"domains": copies.optimizers, **({"erm": erm_optimizer} if self.trains_pooled else {})}
        return self._update(state, problem, copies, direction, decision, optimizers)  # θ + α d

    def combine_gradients(self, gradients: FlatParams, key: Tensor) -> tuple[Params, Metrics]:
        """Combine the gradients g_i of the domains into one: −d for the trajectories h_i = −g_i of one SGD step.

        Args:
            gradients: Gradients g_i of the domains, [K, ...].
            key: Random key, for methods that draw random numbers.

        Raises:
            UsageError: The method has more than one inner step, or a partition of the weights.
        """
        if self.inner_steps != 1 or self.partition != "all":
            raise UsageError(
                f"Expected {type(self).__name__} with inner_steps=1 and partition='all', to combine gradients; found "
                f"inner_steps={self.inner_steps} and partition={self.partition!r}. Use a Learner for these."
            )
        reduce, names = Local(), (tuple(gradients),)
        centre = gradients.flat.mean(0) if self.trains_pooled else None
        rows = GatheredTrajectories(gradients, centre)
        state = State({}, {}, {}, {}, torch.zeros((), dtype=torch.int64, device=key.device), key)
        decision = Decision(*self._decide(reduce.gramians(rows, names), 1, state))
        return reduce.weighted_sum(rows, names, decision.weights, decision.finite), decision.metrics

    def _decide(self, grams: Tensor, count: int, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor, Metrics]:
        """Return the fields of `Decision` from inner products [blocks, N, N]; `direction` gets the first ``count``."""
        finite = grams.diagonal(dim1=-2, dim2=-1).isfinite().all(0)
        G = torch.where(finite & finite[:, None], grams[:count], 0.0)
        gram, centre = G.squeeze(0), None  # one problem without a batch axis: `solve` has a faster path on a CPU
        if self.trains_pooled:
            gram, centre = gram[..., :-1, :-1], (gram[..., :-1, -1], gram[..., -1, -1])  # h_i·h_0 and ‖h_0‖²
        direction = self.direction(gram, centre, state)
        weights = direction.weights
        if self.trains_pooled:
            weights = torch.cat([weights, torch.ones_like(weights[..., :1])], -1)
        weights = weights.reshape(count, -1)
        if direction.rescale:
            norm = length(G, weights).unsqueeze(-1)
            weights = torch.where(norm > 0, weights * self.centre_norms(G).unsqueeze(-1) / norm, weights)
        metrics = direction.metrics | self.step_metrics(G, weights)
        is_zero = metrics.get("centre_norm", metrics["norm"]) <= ZERO * G.sum(0).diagonal().mean().sqrt()
        if len(grams) > count:
            weights = torch.cat([weights, self._weights_without_problem(weights)[None]])
        lengths = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        bound = torch.where(finite, weights.abs() * lengths, 0).sum()  # |d| ≤ Σ |c_i| |h_i|
        return weights, bound, finite, is_zero, metrics

    _decide_compiled = compiled(_decide)

    def centre_norms(self, G: Tensor) -> Tensor:
        """Return ‖h_0‖ in every block, [blocks]: of ERM's trajectory, or of the mean trajectory."""
        return (G[:, -1, -1] if self.trains_pooled else G.mean((-2, -1))).clamp(min=0).sqrt()

    def step_metrics(self, G: Tensor, weights: Tensor) -> Metrics:
        """Return ‖d‖, the mean cosine between trajectories, and cos(h_i, d). Inner products are summed over blocks."""
        K = G.shape[-1] - self.trains_pooled
        aligned, norm = alignment(G, weights).sum(0), length(G, weights).square().sum().sqrt()  # h_i·d, ‖d‖
        metrics = {"norm": norm, "agreement": agreement(G.sum(0)[:K, :K])}
        if self.partition != "classifier":  # else G does not contain the whole step; a probe measures it
            metrics["cosine"] = (aligned / (G.sum(0).diagonal().sqrt() * norm))[:K]
        return metrics

    def _weights_without_problem(self, weights: Tensor) -> Tensor:
        """Return the weights c of the block without a problem of its own: [N].

        With partition="all", these are weights that a modifier has added; they follow the direction of all others. With
        other partitions, the block follows h_0.
        """
        if self.partition == "all":
            return weights[0]
        rows = weights.shape[-1]
        if self.trains_pooled:
            return (torch.arange(rows, device=weights.device) == rows - 1).to(weights.dtype)
        return torch.full_like(weights[0], 1 / rows)

    def _update(
        self, state: State, problem: Problem, copies: Copies, direction: Params, decision: Decision, optimizers: Tree
    ) -> tuple[State, Metrics]:
        """Return the state with θ + α d, or with θ if the round is skipped, and the metrics of the round."""
        params, accepted = _move(
            flat_vector(state.params), flat_vector(direction), self.meta_lr, decision.bound, decision.finite.all()
        )
        finite = decision.finite[: problem.num_domains]
        buffers, losses = problem.reduce.all_gather((copies.buffers, copies.losses))
        before = trees.repeat(problem.live_buffers(state), problem.num_domains)
        persists = self.inner_state == "persist"
        kept = problem.reduce.local_rows(finite if persists else torch.zeros_like(finite))
        optimizers = optimizers | {"domains": mark_for_reset(optimizers["domains"], kept)}
        if self.trains_pooled:
            optimizers |= {"erm": mark_for_reset(optimizers["erm"], decision.finite[-1] & persists)}
        skipped, report = _report(decision, finite, accepted, state.memory["skipped"], losses)
        after = state._replace(
            params=unflatten(params, state.params),
            buffers=state.buffers | trees.mean(trees.where(finite & accepted, buffers, before)),
            optimizer=optimizers,
            memory=state.memory | {"skipped": skipped},
            step=state.step + 1,
        )
        return after, report


@dataclass(frozen=True)
class WeightedRounds(DomainRounds):
    """Base class of methods that differ only in the weights c_i of d = Σ_i c_i h_i."""

    abstract: ClassVar[bool] = True

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weight of each trajectory, [..., K], from their inner products [..., K, K]."""
        raise NotImplementedError

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Return the weights, and the worst alignment of the step with a domain."""
        return weighted_direction(gram, self.weights(gram, state))

    def step_metrics(self, G: Tensor, weights: Tensor) -> Metrics:
        """Return ‖d‖, the mean cosine between trajectories, and cos(h_i, d)."""
        if len(G) > 1 or self.partition == "classifier":
            return super().step_metrics(G, weights)
        gram, weights = G[0], weights[0]
        return {"norm": length(gram, weights), "agreement": agreement(gram), "cosine": cosines(gram, weights)}


def weighted_direction(gram: Tensor, weights: Tensor) -> Direction:
    """Return the direction with these weights, and as metrics the weights and the worst alignment with a domain."""
    aligned = alignment(gram, weights).reshape(-1, gram.shape[-1]).sum(0)  # h_i·d, over all blocks
    return Direction(weights, {"weights": weights.reshape(-1, gram.shape[-1]).mean(0), "worst": aligned.min()})


def solution_metrics(solution: Solution, gram: Tensor, centre: Centre | None) -> Metrics:
    """Return the metrics of a solved problem: π, p*, duality gap, and ‖h_0‖. Blocks are summed, or averaged for π."""
    blocks = gram.reshape(-1, *gram.shape[-2:])
    centre_squares = blocks.mean((-2, -1)) if centre is None else centre[1].reshape(-1)  # ‖h_0‖² in every block
    return {
        "mixture": solution.mixture.reshape(len(blocks), -1).mean(0),
        "worst": solution.worst.sum(),
        "gap": solution.gap.sum() / blocks.sum(0).diagonal().mean(),
        "stationary": solution.stationary.double().mean(),
        "centre_norm": centre_squares.clamp(min=0).sqrt().square().sum().sqrt(),
    }


@compiled
def _move(params: Tensor, direction: Tensor, lr: Scalar, bound: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Return θ + α d and True, or θ and False if d is not finite or the update could overflow.

    If α·|d| ≤ eps·max/8 the update cannot overflow, so the new weights need no check for NaN and infinity.
    """
    limits = torch.finfo(params.dtype)
    accepted = finite & (lr * bound <= limits.max * limits.eps / 8)
    moved = ((lr.to(params.dtype) if isinstance(lr, Tensor) else lr) * direction).add_(params)
    return moved if known_true(accepted) else torch.where(accepted, moved, params), accepted


@compiled
def _report(
    decision: Decision, finite: Tensor, accepted: Tensor, skipped: Tensor, losses: Tensor
) -> tuple[Tensor, Metrics]:
    """Return the number of rounds skipped so far, and the metrics of this round."""
    skip = ~accepted | decision.is_zero
    report = {"loss": losses.mean(), "nonfinite": (~finite).double(), "skipped": skip.double()}
    metrics = decision.metrics
    if not known_true(accepted):
        metrics = {name: torch.where(accepted, value, torch.nan) for name, value in metrics.items()}
    return skipped + skip, report | metrics
