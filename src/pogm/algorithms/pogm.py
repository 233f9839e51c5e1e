"""Pareto optimal gradient matching, the paper's method."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.errors import UsageError
from pogm.core.hyper import Choice, hyper
from pogm.core.optim import SGD, Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params, Tree
from pogm.pareto import Solution, gramian, official_weights, solve


@dataclass(frozen=True)
class POGM(Algorithm):
    r"""Pareto optimal gradient matching (Do et al., ECAI): the direction on which the worst-off domain agrees most.

    Each domain trains its own copy of the model for E minibatches. How far that took it is its trajectory
    :math:`h_i = \theta_i - \theta`. The model then moves along the best direction in a ball around their mean,

    .. math:: \theta \leftarrow \theta + \alpha d, \qquad
        d = \arg\max_{\|d - h_0\| \le \kappa \|h_0\|} \min_i \langle h_i, d \rangle
          = h_0 + \kappa \|h_0\| \frac{h_\pi}{\|h_\pi\|}, \qquad h_0 = \tfrac1K \sum_i h_i,

    where :math:`h_\pi = \sum_i \pi_i h_i` is the mixture of domains that agrees least with it (Theorem 1), found
    exactly from the K×K inner products of the trajectories.

    Where we leave the text: a trajectory is *after minus before*, so the update adds it (with the paper's minus
    it would climb), and the ball has one radius, κ‖h_0‖, in the problem and in the step (``convention``). The
    authors' code is ``POGM.preset("official")``; the numbers of the text are ``POGM.preset("paper_text")``.
    """

    kappa: float = hyper(0.5, Choice(0.05, 0.1, 0.5), least=0, draw_as="pogm_kappa")  # radius of the ball
    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # alpha
    inner_steps: int = hyper(1, Choice(1, 5, 10), least=1, draw_as="pogm_local_steps")  # E

    convention: str = hyper("radius", options=("radius", "sqrt", "paper_mixed"))  # what kappa is
    solver: str = hyper("exact", options=("exact", "official"))
    rescale: str = hyper("none", options=("none", "official", "norm"))  # of the direction d
    stationary: str = hyper("keep", options=("keep", "project"))  # d where no direction helps every domain
    inner_optimizer: str = hyper("adam", options=("adam", "sgd"))
    inner_state: str = hyper("persist", options=("persist", "reset"))  # between rounds, one per domain
    erm_direction: str = hyper("mean", options=("mean", "pooled"))  # what h_0 is
    scope: str = hyper("all", options=("all", "classifier"))  # the weights that are matched
    nonfinite: str = hyper("skip", options=("skip", "drop"))  # the round, or the domain

    min_domains: ClassVar[int] = 1
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {"solver": "official", "rescale": "official"},
        "paper_text": {
            "meta_lr": 0.01,
            "inner_steps": 5,
            "convention": "paper_mixed",
            "inner_optimizer": "sgd",
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.erm_direction == "pooled" and (self.solver == "official" or self.nonfinite == "drop"):
            raise UsageError(
                "Expected POGM.erm_direction='mean' beside solver='official' or nonfinite='drop', which are defined "
                "for the mean of the trajectories; found 'pooled'. Change one of them."
            )

    @property
    def minibatches(self) -> int:
        """E."""
        return self.inner_steps

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """What trains the copies."""
        return SGD(lr, weight_decay) if self.inner_optimizer == "sgd" else Adam(lr, weight_decay)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """One inner optimizer per domain, and one for the pooled copy if there is one."""
        state = super().start(params, buffers, key, problem)
        inner = {"domains": trees.repeat(state.optimizer, problem.num_domains)}
        if self.erm_direction == "pooled":
            inner["pooled"] = state.optimizer
        return state._replace(optimizer=inner, memory={"skipped": torch.zeros_like(state.step)})

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One round: K copies trained apart, one move of the shared model."""
        follow = partial(self._trajectory, state, problem)
        keys = random.split(self.random_key(state), problem.num_domains)
        stale = trees.repeat(problem.live_buffers(state), problem.num_domains)
        rows, inner, buffers, losses = problem.each_domain(follow, batches, state.optimizer["domains"], stale, keys)
        optimizers = {"domains": inner}
        if self.erm_direction == "pooled":  # h_0 is a further row, the trajectory of a copy that sees every domain
            live, key = problem.live_buffers(state), self.random_key(state, 1)
            pooled, optimizers["pooled"], *_ = follow(batches, state.optimizer["pooled"], live, key)
            rows = trees.map_leaves(lambda domains, one: torch.cat([domains, one[None]]), rows, pooled)

        products = gramian(self._matched(rows))  # G: [K, K], or [K + 1, K + 1]
        finite = self._finite(rows, products)
        accepted = finite.any() if self.nonfinite == "drop" else finite.all()
        rows = trees.masked(finite, rows)
        products = torch.where(finite & finite[:, None], products, 0.0)

        solution, weights = self._weights(products, finite)
        direction = self._combined(weights, finite, rows)
        moved = trees.move(state.params, direction, self.meta_lr)

        domains = finite[: problem.num_domains]
        kept = domains if self.inner_state == "persist" else torch.zeros_like(domains)
        optimizers["domains"] = trees.masked(kept, inner)  # a fresh optimizer is all zeros
        after = state._replace(
            params=trees.where(accepted, moved, state.params),
            buffers=state.buffers | trees.mean(trees.where(domains & accepted, buffers, stale)),
            optimizer=optimizers,
            memory={"skipped": state.memory["skipped"] + ~accepted},
            step=state.step + 1,
        )
        metrics = self._metrics(products, weights, solution, problem.num_domains)
        metrics |= {"loss": losses.mean(), "nonfinite": (~domains).double(), "skipped": (~accepted).double()}
        return after, metrics

    def _trajectory(
        self, state: State, problem: Problem, batches: list[Batch], inner: Tree, live: Params, key: Tensor
    ) -> Tree:
        """Where E minibatches take a copy of the model: h_i, with its optimizer, buffers and mean loss."""
        copy, losses = state._replace(optimizer=inner, buffers=state.buffers | live, key=key), []
        for batch in batches:
            copy, metrics = super().step(copy, [batch], problem)
            losses.append(metrics["loss"])
        trajectory = trees.subtract(copy.params, state.params)
        return trajectory, copy.optimizer, problem.live_buffers(copy), torch.stack(losses).mean()

    def _weights(self, products: Tensor, finite: Tensor) -> tuple[Solution, Tensor]:
        """The weight of each row in the direction d."""
        root = self.kappa**0.5
        radius = self.kappa if self.convention == "radius" else root
        step_radius = root if self.convention == "sqrt" else self.kappa

        if self.erm_direction == "pooled":
            centre = (products[:-1, -1], products[-1, -1])  # h_i · h_0 and h_0 · h_0
            solution = solve(
                products[:-1, :-1], radius, centre=centre, step_radius=step_radius, stationary=self.stationary
            )
            weights = torch.cat([solution.weights, torch.ones_like(solution.weights[:1])])
        else:
            solution = solve(products, radius, step_radius=step_radius, stationary=self.stationary)
            weights = solution.weights
            if self.solver == "official":
                mixture, weights = official_weights(products, self.kappa, rescale=False)
                solution = solution._replace(mixture=mixture, weights=weights)
            # Dropped rows are zero, and the mean over the others is the mean over all times K / (number of others).
            weights = weights * (len(finite) / finite.sum().clamp(min=1))

        if self.rescale == "official":
            weights = weights / (1 + self.kappa**2)
        if self.rescale == "norm":
            centre_norm = products[-1, -1].sqrt() if self.erm_direction == "pooled" else products.mean().sqrt()
            norm = (weights @ products @ weights).clamp(min=0).sqrt()
            weights = torch.where(norm > 0, weights * centre_norm / norm, weights)
        return solution, weights

    def _finite(self, rows: Params, products: Tensor) -> Tensor:
        """Which rows are finite: those whose squared norm is, if that sees all of the row."""
        if self.scope == "all":
            return products.diagonal().isfinite()
        return torch.stack([leaf.isfinite().flatten(1).all(1) for leaf in rows.values()]).all(0)

    def _matched(self, rows: Params) -> Params:
        if self.scope == "all":
            return rows
        head = {name: leaf for name, leaf in rows.items() if name.startswith("head.")}
        if not head:
            raise UsageError(
                "Expected a network with a head for POGM.scope='classifier'; found one without. "
                "Name the last layer, for example Learner(module, POGM(scope='classifier'), head='fc')."
            )
        return head

    def _combined(self, weights: Tensor, finite: Tensor, rows: Params) -> Params:
        """d = Σ_i c_i h_i; weights that are not matched follow h_0."""
        if self.scope == "all":
            direction: Params = trees.combine(weights, rows)
            return direction
        plain = torch.zeros_like(weights)
        if self.erm_direction == "pooled":
            plain[-1] = 1
        else:
            plain = finite / finite.sum().clamp(min=1)
        return {
            name: trees.combine(weights if name.startswith("head.") else plain, leaf) for name, leaf in rows.items()
        }

    def _metrics(self, products: Tensor, weights: Tensor, solution: Solution, count: int) -> Metrics:
        """What the theory speaks of: π, p*, the certificate, and who agrees with whom."""
        norms = products.diagonal().sqrt()
        norm = (weights @ products @ weights).clamp(min=0).sqrt()  # |d|
        cosines = (products / (norms * norms[:, None]))[:count, :count]  # cos(h_i, h_j); NaN for a zero trajectory
        pairs = (cosines.sum() - cosines.diagonal().sum()) / max(count * (count - 1), 1)
        alignments = (products @ weights)[:count]
        return {
            "mixture": solution.mixture,
            "worst": alignments.min(),
            "gap": solution.gap / products[:count, :count].diagonal().mean(),
            "stationary": solution.stationary.double(),
            "centre_norm": products[-1, -1].sqrt() if len(weights) > count else products.mean().clamp(min=0).sqrt(),
            "norm": norm,
            "angle": alignments / (norms[:count] * norm),
            "agreement": pairs if count > 1 else torch.full_like(pairs, torch.nan),
        }
