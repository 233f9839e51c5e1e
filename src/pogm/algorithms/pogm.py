"""Pareto optimal gradient matching, the paper's method."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.trajectories import STILL, Aim, Copies, Trajectories, divided, finite, reach
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.core.flat_params import flat_vector, unflatten
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.optimizers import apply_reset, mark_for_reset
from pogm.core.problem import Objective, Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trajectory_reduce import Blocks
from pogm.core.trees import Params, Tree
from pogm.pareto import Solution, agreement, alignment, length, solve
from pogm.pareto.problem import Centre
from pogm.pareto.solution import EXACT


class KappaWarning(UserWarning):
    """The ball is so large that a step in it need not lower the mean loss."""


@dataclass(frozen=True)
class POGM(Trajectories):
    r"""Pareto optimal gradient matching (Do et al., ECAI): the direction on which the worst-off domain agrees most.

    Each domain trains its own copy of the model for E minibatches. Its displacement is the domain's trajectory
    :math:`h_i = \theta_i - \theta`. The model then moves along the direction whose worst agreement with the
    trajectories is best, within a ball around the ERM trajectory :math:`h_0` (Theorem 1):

    .. math:: \theta \leftarrow \theta + \alpha d, \qquad
        d = \arg\max_{\|d - h_0\| \le \kappa \|h_0\|} \min_i \langle h_i, d \rangle
          = h_0 + \kappa \|h_0\| \frac{h_\pi}{\|h_\pi\|}.

    Here :math:`h_\pi = \sum_i \pi_i h_i` is the mixture of domains that agrees least with d. It is found exactly from
    the K×K inner products of the trajectories.

    The paper defines :math:`h_0` twice, and ``centre`` chooses between the two:

    - ``"erm"``: the displacement of one more copy, which the run's optimizer trains on the minibatches of all domains
      (Eq. 5). With κ = 0 and α = 1 the method is ERM, whatever the optimizer and E (Corollary 1). For E = 1 this takes
      no further pass over the data: the gradient of the pooled risk is the mean of the domains' gradients. (With live
      batch norm, or a modifier such as MixStyle or CIRL, it is not, and there is a pass of its own.)
    - ``"mean"``: the mean of the h_i (Algorithm 1). This equals ERM's step for E = 1 and plain SGD only. With Adam,
      every h_i is normalised by the moments of its own domain, and their mean is another direction.

    Differences from the text: h_i is *after minus before*, so the update adds α d (the printed minus would ascend), and
    the ball has the same radius κ‖h_0‖ in the problem and in the step. See ``OfficialPOGM``, ``PaperTextPOGM`` and
    ``MeasurementPOGM`` for the published variants.
    """

    kappa: float = hyper(0.1, Choice(0.05, 0.1, 0.2, 0.5), least=0, draw_as="pogm_kappa")  # radius of the ball / |h_0|
    _: KW_ONLY
    meta_lr: float = hyper(1.0, Choice(0.1, 0.5, 1.0), above=0)  # alpha
    centre: str = hyper("erm", options=("erm", "mean"))  # what h_0 is
    rescale: str = hyper("none", options=("none", "norm"))  # "norm" scales d to the length of h_0
    scope: str = hyper("all", options=("all", "classifier"))  # the weights that are matched
    granularity: str = hyper("global", options=("global", "block", "layer"))  # one problem, or one for each part

    replaced: ClassVar[dict[str, str]] = {
        "erm_direction": "centre: centre=erm was erm_direction=pooled",
        "convention": "an algorithm: PaperTextPOGM; for the radius √κ‖h_0‖ in both places set kappa to √κ",
        "solver": "an algorithm: OfficialPOGM",
        "stationary": "an argument of pogm.pareto.solve",
        "official": "an algorithm: OfficialPOGM",
        "paper_text": "an algorithm: PaperTextPOGM",
        "nonfinite": "nothing: a round with a trajectory that is not finite is always skipped",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.kappa, float) and self.kappa >= 1:
            text = f"POGM.kappa={self.kappa:g}: from 1 on, a step may go against the centre of the ball."
            warnings.warn(text, KappaWarning, stacklevel=3)

    @property
    def trains_pooled(self) -> bool:
        """True if one more copy is trained, on the minibatches of all domains: the ERM centre."""
        return self.centre == "erm"

    def keeps_gradients(self, problem: Problem) -> bool:
        """True if the pooled gradient is the mean of the copies' gradients, which are then all taken at θ."""
        return self.centre == "erm" and self.inner_steps == 1 and not problem.coupled

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """One inner optimizer per domain, and one for ERM's copy if there is one."""
        state = super().start(params, buffers, key, problem)
        if self.trains_pooled:
            state = state._replace(optimizer=state.optimizer | {"erm": problem.optimizer.init(params)})
        return state

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One round: every domain trains a copy, then the shared model moves."""
        copies = self.copies(state, batches, problem)  # h_i: [K, ...]
        centre, inner = self.erm_trajectory(state, batches, problem, copies) if self.trains_pooled else (None, None)

        matched, others = self.blocks(state.params)
        h = problem.reduce.gather(copies.trajectories, centre)
        grams = problem.reduce.gramians(h, matched + others)  # h_i · h_j: [blocks, N, N], h_0 last if it is a row
        decided = self._decided_at_once if problem.num_domains <= EXACT else self._decided
        weights, far, sound, still, metrics = decided(grams, len(matched))  # c_i: [blocks, N]
        direction = problem.reduce.weighted_sum(h, matched + others, weights, sound)  # d = Σ c_i h_i

        aim = Aim(direction, far, sound[: problem.num_domains], sound.all(), still, metrics)
        kept = {} if inner is None else {"erm": mark_for_reset(inner, sound[-1] & (self.inner_state == "persist"))}
        return self.moved(state, problem, copies, aim, kept)  # θ + α d

    def erm_trajectory(
        self, state: State, batches: list[Batch], problem: Problem, copies: Copies
    ) -> tuple[Params, Tree]:
        """Trajectory of ERM itself, h_0 = θ_ERM − θ, after the same E minibatches; and its optimizer's state."""
        optimizer = apply_reset(state.optimizer["erm"])
        if self.keeps_gradients(problem):
            gradient = problem.reduce.average_gradient(trees.map_numbers(_mean, copies.gradients))
            params, optimizer = problem.optimizer.update(state.params, gradient, optimizer)
            return unflatten(_difference(flat_vector(params), flat_vector(state.params)), state.params), optimizer
        live, key = problem.live_buffers(state), self.random_key(state, 1)
        pooled = self.train_copy(state, replace(problem, gradient=_pooled(problem)), batches, optimizer, live, key)
        return pooled.trajectories, pooled.optimizers

    def solve(self, G: Tensor, centre: Centre | None) -> Solution:
        """Theorem 1: the weights of d, exactly. The published variants override this."""
        return solve(G, self.kappa, centre=centre)

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

    def _decided(self, grams: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Metrics]:
        """Weights of every block's trajectories [blocks, N] and a bound of |d|; which rows are finite; whether h_0 = 0;
        and the metrics. The first ``count`` blocks are matched.
        """
        sound = finite(grams)
        G = torch.where(sound & sound[:, None], grams[:count], 0.0)
        weights, solution = self._weights(G)
        metrics = self._metrics(G, weights, solution)
        still = metrics["centre_norm"] <= STILL * G.sum(0).diagonal().mean().sqrt()  # h_0 = 0
        everywhere = weights if len(grams) == count else torch.cat([weights, self._unmatched(weights)[None]])
        return everywhere, reach(grams, everywhere, sound), sound, still, metrics

    _decided_at_once = compiled(_decided)

    def _weights(self, G: Tensor) -> tuple[Tensor, Solution]:
        """The weight c_i of each row in the direction d: [blocks, N], one problem per block."""
        problems = G.squeeze(0)  # `solve` has a faster path on a CPU for a single problem
        if self.trains_pooled:
            centre = problems[..., :-1, -1], problems[..., -1, -1]  # h_i · h_0 and |h_0|²
            solution = self.solve(problems[..., :-1, :-1], centre)
            weights = torch.cat([solution.weights, torch.ones_like(solution.weights[..., :1])], -1)
        else:
            solution = self.solve(problems, None)
            weights = solution.weights
        weights = weights.reshape(len(G), -1)
        if self.rescale == "norm":
            norm = length(G, weights).unsqueeze(-1)
            weights = torch.where(norm > 0, weights * self._centre_norms(G).unsqueeze(-1) / norm, weights)
        return weights, solution

    def _centre_norms(self, G: Tensor) -> Tensor:
        """|h_0| in every block: [blocks]."""
        return (G[:, -1, -1] if self.trains_pooled else G.mean((-2, -1))).clamp(min=0).sqrt()

    def _unmatched(self, weights: Tensor) -> Tensor:
        """Weights c_i of parameters that are not matched: those of the one matched block, else those of h_0."""
        if self.scope == "all" and self.granularity == "global":
            return weights[0]
        rows = weights.shape[-1]
        if self.trains_pooled:
            return (torch.arange(rows, device=weights.device) == rows - 1).to(weights.dtype)
        return torch.full_like(weights[0], 1 / rows)

    def _metrics(self, G: Tensor, weights: Tensor, solution: Solution) -> Metrics:
        """Metrics of a round: π, p*, duality gap, norms and cosines. Over blocks, inner products are summed."""
        count = G.shape[-1] - self.trains_pooled
        domains = G.sum(0)[:count, :count]
        aligned, norm = alignment(G, weights).sum(0), length(G, weights).square().sum().sqrt()  # h_i · d, |d|
        metrics = {
            "mixture": solution.mixture.reshape(len(G), -1).mean(0),
            "worst": solution.worst.sum(),
            "gap": solution.gap.sum() / domains.diagonal().mean(),
            "stationary": solution.stationary.double().mean(),
            "centre_norm": self._centre_norms(G).square().sum().sqrt(),
            "norm": norm,
            "agreement": agreement(domains),
        }
        if self.scope == "all":  # else G does not see the whole step; a probe will
            metrics["angle"] = (aligned / (G.sum(0).diagonal().sqrt() * norm))[:count]
        return metrics


def _pooled(problem: Problem) -> Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]:
    """Gradient of the pooled risk: of the samples in this process, averaged over the processes of a run."""

    def gradient(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
        def over_all(params: Params) -> tuple[Params, Loss]:
            slopes, loss = problem.gradient(objective)(params)
            return problem.reduce.average_gradient(slopes), loss

        return over_all

    return gradient


@compiled
def _mean(rows: Tensor) -> Tensor:
    """Mean over the leading axis, added up in order: the same bits wherever the rows come from."""
    total = rows[0]
    for row in rows[1:].unbind():
        total = total + row
    return total / rows.shape[0]


@compiled
def _difference(after: Tensor, before: Tensor) -> Tensor:
    return after - before


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
