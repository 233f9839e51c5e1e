"""Variants of POGM under test, for the experiment ``pogm_variants``. They are not among the algorithms of pogm.

A variant moves to `pogm.algorithms` if it succeeds (`results/variants/README.md` states the rule). The rows of the
experiment name a class by its path, ``module:Class``, like a plug-in. "Matching" is the part d − h_0 of a step.
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.copies import Copies
from pogm.algorithms.fish import Fish
from pogm.algorithms.pogm import POGM
from pogm.algorithms.rounds import Decision, Direction, solution_metrics
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.core.flat_params import FlatParams, flat_vector, flatten, unflatten
from pogm.core.hyperparameters import hyper
from pogm.core.optimizers import SGD, Adam, Optimizer, Scalar, apply_reset
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params, Tree
from pogm.pareto import length, solve
from pogm.pareto.eigen import eigh
from pogm.pareto.problem import Centre


@dataclass(frozen=True)
class RoundAdam(Adam):
    """Adam whose mean m starts at zero in every round of E updates; its mean square v is kept."""

    updates: int = 1  # E

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Return the weights and the state after one update."""
        vector = flat_vector({name: gradient[name] for name in params})
        rates = (self.lr, self.weight_decay, self.beta1, self.beta2, self.eps, self.updates)
        updated, after = _round_update(flat_vector(params), vector, state, *rates)
        return unflatten(updated, params), after


@compiled
def _round_update(
    weights: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    lr: Scalar,
    weight_decay: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: float,
    updates: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return θ − η m̂ / (√v̂ + ε), and the new state."""
    dtype, done = weights.dtype, state["count"] % updates  # updates of this round so far
    gradient = (gradient + weight_decay * weights).to(dtype)
    mean = beta1 * torch.where(done > 0, state["mean"], 0) + (1 - beta1) * gradient
    square = beta2 * state["square"] + (1 - beta2) * gradient.square()
    rate = (lr / (1 - beta1 ** (done + 1))).to(dtype)
    correction = (1 - beta2 ** (state["count"] + 1)).sqrt().to(dtype)
    updated = weights - rate * mean / (square.sqrt() / correction + eps)
    return updated, {"mean": mean.to(dtype), "square": square.to(dtype), "count": state["count"] + 1}


@dataclass(frozen=True)
class SharedMomentPOGM(POGM):
    r"""POGM whose copies share Adam's second moment; the first moment is zero at the start of a round.

    .. math:: v \leftarrow \tfrac1K \sum_i v_i, \qquad m_i = 0 \quad \text{before every round}

    A copy starts with the shared v and adds its own gradients during the round. So the trajectories of all domains have
    nearly the same preconditioner, and with E = 1 their mean is a step of RMSProp. ERM's copy has its own Adam.
    """

    inner_optimizer: str = hyper("adam", options=("adam",))
    inner_state: str = hyper("persist", options=("persist",))

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """None: the second moment is a mean over all domains."""
        return ()

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return the optimizer of the copies."""
        return RoundAdam(lr, weight_decay, updates=self.inner_steps)

    def erm_trajectory(
        self, state: State, batches: list[Batch], problem: Problem, copies: Copies
    ) -> tuple[Params, Tree]:
        """Return the trajectory of ERM with Adam, and its optimizer state."""
        copied = problem.optimizer
        assert isinstance(copied, Adam)
        adam = Adam(copied.lr, copied.weight_decay)
        return super().erm_trajectory(state, batches, replace(problem, optimizer=adam), copies)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Run one round, then average the second moments of the copies that are finite."""
        after, metrics = super().step(state, batches, problem)
        domains = after.optimizer["domains"]
        finite = domains["count"] > 0
        total = torch.where(finite[:, None], domains["square"], 0).sum(0)
        shared = {"square": total / finite.sum().clamp(min=1), "count": domains["count"].amax(0)}
        domains = domains | trees.repeat(shared, problem.num_domains)
        return after._replace(optimizer=after.optimizer | {"domains": domains}), metrics


@dataclass(frozen=True)
class NesterovPOGM(POGM):
    r"""POGM with Nesterov momentum on the direction d, as in the outer optimizer of DiLoCo (Douillard et al., 2023).

    .. math:: m \leftarrow \mu m + d, \qquad \theta \leftarrow \theta + \alpha (d + \mu m)

    With α = 0.7 and μ = 0.9, a constant d gives steps of α / (1 − μ) = 7 times its length.
    """

    meta_lr: float = hyper(0.7, above=0)  # α
    outer_momentum: float = hyper(0.9, least=0)  # μ

    names: ClassVar[tuple[str, ...]] = ("outer_mean",)  # vectors that the outer optimizer keeps

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the first state, with zeros for the outer optimizer."""
        state = super().start(params, buffers, key, problem)
        zeros = {name: torch.zeros_like(flat_vector(params)) for name in self.names}
        return state._replace(memory=state.memory | zeros)

    def outer_step(self, d: Tensor, state: State, problem: Problem) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the step divided by α, and the new memory of the outer optimizer."""
        momentum = (self.outer_momentum * state.memory["outer_mean"] + d).to(d.dtype)
        return (d + self.outer_momentum * momentum).to(d.dtype), {"outer_mean": momentum}

    def _update(
        self, state: State, problem: Problem, copies: Copies, direction: Params, decision: Decision, optimizers: Tree
    ) -> tuple[State, Metrics]:
        """Return the state after a step of the outer optimizer; a round that is not finite does not change it."""
        d, memory = self.outer_step(flat_vector(direction), state, problem)
        finite = decision.finite.all()
        kept = {name: torch.where(finite, new, state.memory[name]) for name, new in memory.items()}
        decision = decision._replace(bound=d.double().norm())
        state = state._replace(memory=state.memory | kept)
        return super()._update(state, problem, copies, unflatten(d, state.params), decision, optimizers)


@dataclass(frozen=True)
class OuterAdamPOGM(NesterovPOGM):
    r"""POGM with SGD in the copies and Adam as the outer optimizer, as in FedAdam (Reddi et al., 2021).

    .. math:: \theta \leftarrow \operatorname{Adam}(\theta, -d / \eta)

    η is the learning rate of the copies and of Adam. The domains are matched before Adam divides by its second moment.
    With E = 1 and κ = 0 it is ERM, up to rounding.
    """

    meta_lr: float = hyper(1.0, above=0)  # α
    outer_momentum: float = hyper(0.9, least=0)  # β₁ of Adam
    inner_optimizer: str = hyper("sgd", options=("sgd",))

    names: ClassVar[tuple[str, ...]] = ("outer_mean", "outer_square")

    def outer_step(self, d: Tensor, state: State, problem: Problem) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the step of Adam, and its moments."""
        copied = problem.optimizer
        assert isinstance(copied, SGD)
        moments = {"mean": state.memory["outer_mean"], "square": state.memory["outer_square"]}
        count = (state.step - state.memory["skipped"]).double()
        adam = Adam(copied.lr, beta1=self.outer_momentum)
        gradient = (-d / copied.lr).to(d.dtype)
        moved, after = adam.update({"d": torch.zeros_like(d)}, {"d": gradient}, moments | {"count": count})
        return moved["d"], {"outer_mean": after["mean"], "outer_square": after["square"]}


@dataclass(frozen=True)
class CrossBatchPOGM(POGM):
    r"""POGM with inner products of different minibatches: those of the two halves of a round, h_i = a_i + b_i.

    .. math:: \hat G_{ij} = 2 (a_i^\top b_j + b_i^\top a_j)

    The noise of the minibatches increases ‖h_i‖², which makes π more uniform. The two halves have different
    minibatches, so products of them have no such bias, apart from what the optimizer carries from one half to the
    other. The factor 2 gives G its usual scale: if a_i = b_i, it is h_i·h_j. Negative eigenvalues of Ĝ are set to 0.
    Only π is computed from Ĝ. The norms ‖h_π‖ and ‖h_0‖, which scale the step, and h_i·h_0 are of whole trajectories.
    """

    _: KW_ONLY
    inner_steps: int = hyper(4, least=2, most=10_000)  # E
    partition: str = hyper("all", options=("all",), added_later=True)

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """None: inner products of half rounds are computed in one process."""
        return ()

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the first state, with memory for Ĝ, which `combine` computes and `direction` uses."""
        state = super().start(params, buffers, key, problem)
        cross = torch.zeros(problem.num_domains, problem.num_domains, dtype=torch.float64, device=key.device)
        return state._replace(memory=state.memory | {"cross": cross})

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
        """Train one copy; the field ``gradients`` of the result holds a_i, the trajectory of the first half."""
        half = len(batches) // 2
        first = super().train_copy(state, problem, batches[:half], optimizer, live, key)
        middle = state._replace(params=trees.add(state.params, first.trajectories), step=state.step + half)
        last = super().train_copy(middle, problem, batches[half:], first.optimizers, first.buffers, key, out)
        trajectory = trees.add(first.trajectories, last.trajectories)
        if out is not None:
            out.flat.copy_(flat_vector(trajectory))
        losses = (half * first.losses + (len(batches) - half) * last.losses) / len(batches)
        return last._replace(trajectories=trajectory, losses=losses, gradients=first.trajectories)

    def combine(self, state: State, batches: list[Batch], problem: Problem, copies: Copies) -> tuple[State, Metrics]:
        """Compute Ĝ, then combine the trajectories."""
        a, h = (flatten(rows, leading=1).flat.double() for rows in (copies.gradients, copies.trajectories))
        products = a @ (h - a).mT  # a_i·b_j
        values, vectors = eigh(2 * (products + products.mT).nan_to_num(0.0, 0.0, 0.0))  # not compiled: many operations
        cross = vectors * values.clamp(min=0) @ vectors.mT
        state = state._replace(memory=state.memory | {"cross": cross})
        return super().combine(state, batches, problem, copies)

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Solve Theorem 1 with Ĝ for π, and scale the step by the norms of the whole trajectories."""
        solution = solve(state.memory["cross"], self.kappa, centre=centre)
        size = gram.mean().clamp(min=0).sqrt() if centre is None else centre[1].sqrt()  # ‖h_0‖
        mixed = length(gram, solution.mixture)  # ‖h_π‖
        weights = torch.where(mixed > 0, self.kappa * size / mixed, 0.0) * solution.mixture
        if centre is None:
            weights = weights + 1 / len(gram)
        return Direction(weights, solution_metrics(solution, gram, centre), rescale=self.rescale == "norm")


@dataclass(frozen=True)
class ConflictPOGM(POGM):
    r"""POGM with matching only while domains conflict, and only early in training.

    .. math:: \kappa_t = \kappa \min(1, \max(0, 2 - t / T)) \cdot [\min_{i \ne j} h_i^\top h_j < 0]

    κ is constant for T rounds, then decreases linearly to 0 at 2T. With κ_t = 0 the step is that of the centre.
    """

    _: KW_ONLY
    decay_iters: int = hyper(500, least=1)  # T
    partition: str = hyper("all", options=("all",), added_later=True)

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Solve Theorem 1 with κ_t."""
        early = (2 - state.step / self.decay_iters).clamp(0, 1)
        others = gram - torch.diag_embed(gram.diagonal())
        radius = self.kappa * early * (others.amin((-2, -1)) < 0)
        solution = solve(gram, radius, centre=centre)
        metrics = solution_metrics(solution, gram, centre) | {"radius": radius}
        return Direction(solution.weights, metrics, rescale=self.rescale == "norm")


@dataclass(frozen=True)
class FishCentrePOGM(POGM):
    r"""POGM with a ball around the step of Fish: an inner step on each domain, one after the other.

    .. math:: h_0 = \epsilon (\tilde\theta - \theta)

    Here θ̃ are the weights after the inner steps of Fish, called the walk. With κ = 0 and α = 1 the method is Fish,
    apart from batch-norm statistics.
    """

    centre: str = hyper("erm", options=("erm",))  # replaced by the step of Fish, see `erm_trajectory`
    walk_lr: float = hyper(0.5, above=0)  # ε

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """None: the walk needs all domains."""
        return ()

    def keeps_gradients(self, problem: Problem) -> bool:
        """False: the walk computes its own gradients."""
        return False

    def erm_trajectory(
        self, state: State, batches: list[Batch], problem: Problem, copies: Copies
    ) -> tuple[Params, Tree]:
        """Return the step of Fish, instead of that of ERM, with the same minibatches, and its optimizer state."""
        walk = state._replace(optimizer=apply_reset(state.optimizer["erm"]))
        for batch in batches:
            walk, _ = Fish(meta_lr=self.walk_lr).step(walk, [batch], problem)
        return trees.subtract(walk.params, state.params), walk.optimizer


@dataclass(frozen=True)
class MatchedLength(Algorithm):
    r"""Control: the step of ERM with the length of Fish's step, or the reverse.

    .. math:: \theta \leftarrow \theta + \frac{\|h_{walk}\|}{\|h_{ERM}\|} h_{ERM}
        \quad\text{or}\quad \theta + \frac{\|h_{ERM}\|}{\|h_{walk}\|} h_{walk}

    :math:`h_{walk}` is the step of Fish. Both steps start at the same θ, and each has its own Adam.
    """

    along: str = hyper("erm", options=("erm", "walk"))  # direction: of ERM or Fish; length: of the other
    walk_lr: float = hyper(0.5, above=0)  # ε of Fish

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the first state, with two optimizers."""
        state = super().start(params, buffers, key, problem)
        return state._replace(optimizer={name: problem.optimizer.init(params) for name in ("erm", "walk")})

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Take both steps from θ, and scale one to the length of the other."""
        erm, metrics = super().step(state._replace(optimizer=state.optimizer["erm"]), batches, problem)
        before = state._replace(optimizer=state.optimizer["walk"])
        walk, _ = Fish(meta_lr=self.walk_lr).step(before, batches, problem)
        own, other = (erm, walk) if self.along == "erm" else (walk, erm)
        step, matched = (flat_vector(after.params) - flat_vector(state.params) for after in (own, other))
        factor = matched.double().norm() / step.double().norm().clamp(min=torch.finfo(torch.float64).tiny)
        updated = erm._replace(
            params=trees.move(state.params, unflatten(step, state.params), factor),
            optimizer={"erm": erm.optimizer, "walk": walk.optimizer},
        )
        return updated, metrics | {"length_ratio": factor}
