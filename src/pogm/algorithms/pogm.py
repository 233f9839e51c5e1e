"""Pareto optimal gradient matching, the paper's method."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm.algorithms.trajectories import STILL, Aim, Trajectories
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.errors import UsageError
from pogm.core.hyper import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params
from pogm.pareto import Solution, agreement, alignment, angles, gap, gramian, length, official_weights, solve


class KappaWarning(UserWarning):
    """The ball is so large that a step in it need not lower the mean loss."""


@dataclass(frozen=True)
class POGM(Trajectories):
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

    convention: str = hyper("radius", options=("radius", "sqrt", "paper_mixed"))  # what kappa is
    solver: str = hyper("exact", options=("exact", "official"))
    rescale: str = hyper("none", options=("none", "official", "norm"))  # of the direction d
    stationary: str = hyper("keep", options=("keep", "project"))  # d where no direction helps every domain
    erm_direction: str = hyper("mean", options=("mean", "pooled"))  # what h_0 is
    scope: str = hyper("all", options=("all", "classifier"))  # the weights that are matched
    nonfinite: str = hyper("skip", options=("skip", "drop"))  # the round, or the domain

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
        unusual = {
            "solver": self.solver != "exact",
            "erm_direction": self.erm_direction != "mean",
            "nonfinite": self.nonfinite != "skip",
            "convention": self.convention != "radius" and self.solver == "official",
            "stationary": self.stationary != "keep" and self.solver == "official",
        }
        chosen = [f"{name}={getattr(self, name)!r}" for name, is_so in unusual.items() if is_so]
        if len(chosen) > 1:
            raise UsageError(
                f"Expected options of POGM that are defined together; found {' and '.join(chosen)}. Leave one out."
            )
        if isinstance(self.kappa, float) and self.kappa >= 1:
            text = f"POGM.kappa={self.kappa:g}: from 1 on, a step may go against the mean of the domains."
            warnings.warn(text, KappaWarning, stacklevel=3)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """One inner optimizer per domain, and one for the pooled copy if there is one."""
        state = super().start(params, buffers, key, problem)
        if self.erm_direction == "pooled":
            state = state._replace(optimizer=state.optimizer | {"pooled": problem.optimizer.init(params)})
        return state

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One round: every domain trains a copy, then the shared model moves."""
        copies, pooled = self.copies(state, batches, problem), None
        trajectories = copies.trajectories  # h_i: [K, ...]
        if self.erm_direction == "pooled":  # one more copy, which sees every domain, goes where ERM would
            live, key = problem.live_buffers(state), self.random_key(state, 1)
            pooled = self.train_copy(state, problem, batches, state.optimizer["pooled"], live, key)
            trajectories = trees.map_leaves(lambda h, h_0: torch.cat([h, h_0[None]]), trajectories, pooled.trajectories)

        G = gramian(self.matched(trajectories))
        finite = self.finite(trajectories, G)
        trajectories = trees.masked(finite, trajectories)
        G = torch.where(finite & finite[:, None], G, 0.0)

        weights, solution = self._weights(G, finite)  # c_i
        direction = self._combined(weights, finite, trajectories)  # d = Σ c_i h_i
        enough = finite.any() if self.nonfinite == "drop" else finite.all()
        still = self._centre_norm(G, finite) <= STILL * G.diagonal().mean().sqrt()  # h_0 = 0: there is no way to go
        metrics = self._metrics(G, weights, finite, solution, problem.num_domains)
        aim = Aim(direction, finite[: problem.num_domains], enough, still, metrics)
        after, report = self.moved(state, problem, copies, aim)  # θ + α d
        if pooled is not None:
            kept = trees.masked(finite[-1] & (self.inner_state == "persist"), pooled.optimizers)
            after = after._replace(optimizer=after.optimizer | {"pooled": kept})
        return after, report

    def _weights(self, G: Tensor, finite: Tensor) -> tuple[Tensor, Solution]:
        """The weight c_i of each trajectory in the direction d, a pooled one's last."""
        root = self.kappa**0.5
        radius = self.kappa if self.convention == "radius" else root  # in the problem
        step_radius = root if self.convention == "sqrt" else self.kappa  # in the step
        if self.erm_direction == "pooled":
            centre = G[:-1, -1], G[-1, -1]  # h_i · h_0 and |h_0|²
            solution = solve(G[:-1, :-1], radius, centre=centre, step_radius=step_radius, stationary=self.stationary)
            weights = torch.cat([solution.weights, torch.ones_like(solution.weights[:1])])
        else:
            solution = solve(G, radius, step_radius=step_radius, stationary=self.stationary)
            weights = solution.weights
        if self.solver == "official":
            mixture, weights = official_weights(G, self.kappa, rescale=False)
            worst, missed = alignment(G, weights).min(), gap(G, mixture, self.kappa)
            solution = Solution(mixture, weights, worst, missed, torch.zeros_like(worst, dtype=torch.bool))

        if self.rescale == "official":
            weights = weights / (1 + self.kappa**2)
        elif self.rescale == "norm":
            norm = length(G, weights)
            weights = torch.where(norm > 0, weights * self._centre_norm(G) / norm, weights)
        return weights * self._share(finite), solution

    def _share(self, finite: Tensor) -> Tensor:
        """What was dropped is zero in G: the mean of the others is the mean of all, times K over their number."""
        return len(finite) / finite.sum().clamp(min=1)

    def _centre_norm(self, G: Tensor, finite: Tensor | None = None) -> Tensor:
        """|h_0|."""
        norm = (G[-1, -1] if self.erm_direction == "pooled" else G.mean()).clamp(min=0).sqrt()
        return norm if finite is None else norm * self._share(finite)

    def _combined(self, weights: Tensor, finite: Tensor, trajectories: Params) -> Params:
        """d = Σ_i c_i h_i. Where only the head is matched, the features follow h_0."""
        if self.erm_direction == "pooled":
            centre = torch.arange(len(weights), device=weights.device) == len(weights) - 1
        else:
            centre = finite / finite.sum().clamp(min=1)
        apart = "features." if self.scope == "classifier" else ()
        return {n: trees.combine(centre if n.startswith(apart) else weights, h) for n, h in trajectories.items()}

    def matched(self, trajectories: Params) -> Params:
        """The weights that inner products are taken over: those that predict, or the head's alone."""
        if self.scope == "all":
            return super().matched(trajectories)
        head = {name: leaf for name, leaf in trajectories.items() if name.startswith("head.")}
        if not head:
            raise UsageError(
                "Expected a network with a head for POGM.scope='classifier'; found one without. "
                "Name the last layer, for example Learner(module, POGM(scope='classifier'), head='fc')."
            )
        return head

    def _metrics(self, G: Tensor, weights: Tensor, finite: Tensor, solution: Solution, count: int) -> Metrics:
        """What the theory speaks of: π, p*, the certificate, and who agrees with whom."""
        domains = G[:count, :count]
        metrics = {
            "mixture": solution.mixture,
            "worst": solution.worst * self._share(finite),
            "gap": solution.gap / domains.diagonal().mean(),
            "stationary": solution.stationary.double(),
            "centre_norm": self._centre_norm(G, finite),
            "norm": length(G, weights),
            "agreement": agreement(domains),
        }
        if self.scope == "all":  # else G does not see the whole step; a probe will
            metrics["angle"] = angles(G, weights)[:count]
        return metrics
