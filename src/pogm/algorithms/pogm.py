"""Pareto optimal gradient matching, the paper's method."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm.algorithms.trajectories import STILL, Aim, Trajectories, divided, finite, reach
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.errors import UsageError
from pogm.core.fuse import fused
from pogm.core.hyper import Choice, hyper
from pogm.core.meeting import Blocks
from pogm.core.optim import begun, forgotten
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params
from pogm.pareto import Solution, agreement, alignment, gap, length, official_weights, solve
from pogm.pareto.solution import EXACT


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
    granularity: str = hyper("global", options=("global", "block", "layer"))  # as a whole, or each part for itself
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

    @property
    def spreads(self) -> tuple[str, ...]:
        """A pooled copy needs all domains in one place."""
        return ("samples",) if self.erm_direction == "pooled" else super().spreads

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
            optimizer, live, key = state.optimizer["pooled"], problem.live_buffers(state), self.random_key(state, 1)
            pooled = self.train_copy(state, problem, batches, begun(optimizer), live, key)
            trajectories = trees.map_numbers(
                lambda h, h_0: torch.cat([h, h_0[None].to(h)]), trajectories, pooled.trajectories
            )

        matched, others = self.blocks(state.params)
        h = problem.meeting.gathered(trajectories)
        grams = problem.meeting.gramians(h, matched + others)  # h_i · h_j: [blocks, K, K]
        decided = self._decided_at_once if grams.shape[-1] <= EXACT else self._decided
        weights, far, sound, enough, still, metrics = decided(grams, len(matched))  # c_i: [blocks, K]
        direction = problem.meeting.combined(h, matched + others, weights, sound)  # d = Σ c_i h_i
        aim = Aim(direction, far, sound[: problem.num_domains], enough, still, metrics)
        after, report = self.moved(state, problem, copies, aim)  # θ + α d
        if pooled is not None:
            kept = forgotten(pooled.optimizers, sound[-1] & (self.inner_state == "persist"))
            after = after._replace(optimizer=after.optimizer | {"pooled": kept})
        return after, report

    def blocks(self, names: Iterable[str]) -> tuple[Blocks, Blocks]:
        """The weights that are matched, as a whole or in parts, and those that are not."""
        (matched,), others = super().blocks(names)
        if self.scope == "classifier":
            matched, features = divided(matched, "head.")
            others = ((*features, *sum(others, ())),)
        if not matched:
            raise UsageError(
                "Expected a network with a head for POGM.scope='classifier'; found one without. "
                "Name the last layer, for example Learner(module, POGM(scope='classifier'), head='fc')."
            )
        return parts(matched, self.granularity), others

    def _decided(self, grams: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Metrics]:
        """The weights of every block's trajectories, [blocks, K], and how far they reach; which are finite, and whether
        these are enough; whether there is no way to go; and what is reported. So many blocks are matched.
        """
        sound = finite(grams)
        G = torch.where(sound & sound[:, None], grams[:count], 0.0)
        weights, solution = self._weights(G, sound)
        metrics = self._metrics(G, weights, sound, solution)
        enough = sound.any() if self.nonfinite == "drop" else sound.all()
        typical = G.sum(0).diagonal().mean().sqrt()
        still = metrics["centre_norm"] <= STILL * typical  # h_0 = 0
        everywhere = weights if len(grams) == count else torch.cat([weights, self._unmatched(weights, sound)[None]])
        return everywhere, reach(grams, everywhere, sound), sound, enough, still, metrics

    _decided_at_once = fused(_decided)

    def _weights(self, G: Tensor, sound: Tensor) -> tuple[Tensor, Solution]:
        """The weight c_i of each trajectory in the direction d, a pooled one's last: [L, K], one problem a block."""
        root = self.kappa**0.5
        radius = self.kappa if self.convention == "radius" else root  # in the problem
        step_radius = root if self.convention == "sqrt" else self.kappa  # in the step
        problems = G.squeeze(0)  # a single one has a faster way on a CPU
        if self.erm_direction == "pooled":
            centre = problems[..., :-1, -1], problems[..., -1, -1]  # h_i · h_0 and |h_0|²
            among = problems[..., :-1, :-1]
            solution = solve(among, radius, centre=centre, step_radius=step_radius, stationary=self.stationary)
            weights = torch.cat([solution.weights, torch.ones_like(solution.weights[..., :1])], -1)
        else:
            solution = solve(problems, radius, step_radius=step_radius, stationary=self.stationary)
            weights = solution.weights
        if self.solver == "official":
            mixture, weights = official_weights(problems, self.kappa, rescale=False)
            worst, missed = alignment(problems, weights).amin(-1), gap(problems, mixture, self.kappa)
            solution = Solution(mixture, weights, worst, missed, torch.zeros_like(worst, dtype=torch.bool))

        weights = weights.reshape(len(G), -1)
        if self.rescale == "official":
            weights = weights / (1 + self.kappa**2)
        elif self.rescale == "norm":
            norm = length(G, weights).unsqueeze(-1)
            weights = torch.where(norm > 0, weights * self._centre_norms(G).unsqueeze(-1) / norm, weights)
        return weights * self._share(sound), solution

    def _share(self, sound: Tensor) -> Tensor:
        """What was dropped is zero in G: the mean of the others is the mean of all, times K over their number."""
        return len(sound) / sound.sum().clamp(min=1)

    def _centre_norms(self, G: Tensor) -> Tensor:
        """|h_0| in every block: [L]."""
        return (G[:, -1, -1] if self.erm_direction == "pooled" else G.mean((-2, -1))).clamp(min=0).sqrt()

    def _unmatched(self, weights: Tensor, sound: Tensor) -> Tensor:
        """The weights c_i for what is not matched: those of the rest, if that is one block; else h_0 leads the way."""
        if self.scope == "all" and self.granularity == "global":
            return weights[0]
        if self.erm_direction == "pooled":
            return (torch.arange(len(sound), device=sound.device) == len(sound) - 1).to(weights.dtype)
        return sound.to(weights.dtype) / sound.sum().clamp(min=1)

    def _metrics(self, G: Tensor, weights: Tensor, sound: Tensor, solution: Solution) -> Metrics:
        """What the theory speaks of: π, p*, the certificate, and who agrees with whom; over blocks, sums and means."""
        count = G.shape[-1] - (self.erm_direction == "pooled")
        domains = G.sum(0)[:count, :count]
        aligned, norm = alignment(G, weights).sum(0), length(G, weights).square().sum().sqrt()  # h_i · d, |d|
        metrics = {
            "mixture": solution.mixture.reshape(len(G), -1).mean(0),
            "worst": solution.worst.sum() * self._share(sound),
            "gap": solution.gap.sum() / domains.diagonal().mean(),
            "stationary": solution.stationary.double().mean(),
            "centre_norm": self._centre_norms(G).square().sum().sqrt() * self._share(sound),
            "norm": norm,
            "agreement": agreement(domains),
        }
        if self.scope == "all":  # else G does not see the whole step; a probe will
            metrics["angle"] = (aligned / (G.sum(0).diagonal().sqrt() * norm))[:count]
        return metrics


def parts(names: tuple[str, ...], granularity: str) -> Blocks:
    """The weights as one block; or a block for each child of the features and the head; or for each layer."""
    if granularity == "global":
        return (names,)
    features, _ = divided(names, "features.")
    levels = list(zip(*(name.split(".")[:-1] for name in features), strict=False))
    wrapped = (depth for depth, level in enumerate(levels) if len(set(level)) > 1)
    shared = next(wrapped, len(levels))  # how many modules are around all of them

    def part(name: str) -> tuple[str, ...]:
        path = name.split(".")[:-1]
        return tuple(path if granularity == "layer" else path[: shared + 1 if name in features else 1])

    blocks: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        blocks.setdefault(part(name), []).append(name)
    return tuple(map(tuple, blocks.values()))
