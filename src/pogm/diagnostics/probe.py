"""The measurements of the paper, and of what its theory speaks of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Self

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.hyperparameters import hyper, validate
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Tree
from pogm.diagnostics import buffer, copies, invariant_angle
from pogm.diagnostics.divergence import divergences
from pogm.diagnostics.round import Round
from pogm.diagnostics.trajectories import differences, predicting, products
from pogm.pareto import alignment_from_cosine, alignment_variance, inner_product_sum, relative_alignment_variance
from pogm.pareto.hull import hull_positions, worst_alignments

MOST = 10**8
LAG = 10
RADIUS = 0.5  # of the ball in which p* is sought, relative to the mean trajectory: the paper's kappa
PROBED = (  # metrics of `round_means`; the last three if they were asked for
    "angle",
    "gip",
    "alignment_variance",
    "alignment_variance_relative",
    "p_star",
    "hull",
    "hull_cosine",
    "divergence",
)

Rounds = dict[str, list[Any]]  # of each measurement, one value, list or matrix for every round that was measured


@dataclass(frozen=True)
class Probe:
    r"""Measures every so many rounds what a round did, beside what each domain alone would have done.

    Round r takes the weights :math:`\theta^-` to :math:`\theta^+`; domain i alone, with the same minibatches, would
    take them to :math:`\theta_i`. With :math:`h = \theta^+ - \theta^-` and :math:`h_i = \theta_i - \theta^-`,

    .. math:: \|\theta_i - \theta^+\|^2, \quad \cos(h_i, h), \quad \|h\|^2, \quad h_i^\top h_j, \quad
        \cos(h, \theta^{(r)} - \theta^{(r - \tau)}).

    ``target`` adds the trajectories of the held-out domains, by labels that the run itself never trains on;
    ``divergence`` adds how far the domains' copies differ in what they predict. Nothing that is measured comes back
    to the run.

    Copies that the method does not train itself learn in measured rounds alone: with ``every`` above 1 their Adam has
    seen less than the run's, and angles look smaller than they are.
    """

    every: int = hyper(0, least=0, most=MOST)  # rounds; 0 for never
    lag: int = hyper(LAG, least=1, most=MOST)  # tau, in rounds
    cyclic: bool = hyper(False)  # the authors' lag: since a snapshot that is renewed every ``lag`` rounds
    target: bool = hyper(False)
    divergence: bool = hyper(False)

    def __post_init__(self) -> None:
        validate(self)
        if self.every and not self.cyclic and self.lag % self.every:
            raise UsageError(
                f"Expected a lag of whole {self.every} rounds, for weights are kept when they are measured; found "
                f"{self.lag}. Choose a multiple of {self.every}, for example {_lag(self.every)}, or the cyclic lag."
            )

    @classmethod
    def each(cls, every: int) -> Self:
        """Every so many rounds, with the usual lag, or the next that is a multiple of it."""
        return cls(every, _lag(every))

    # When, which the host decides.

    def measures(self, number: int) -> bool:
        """Whether it measures the round of this number, counted from 1."""
        return self.every > 0 and number % self.every == 0

    def room(self, ends: Sequence[int]) -> int:
        """The rounds that are measured between two evaluations, at most, if these come after so many rounds."""
        counts = [end // self.every if self.every else 0 for end in ends]
        return max(later - sooner for sooner, later in pairwise([0, *counts]))

    # What, which stays on the device.

    def start(self, algorithm: Algorithm, state: State, problem: Problem, held_out: int, room: int) -> Tree:
        """What it keeps before the first round; of so many held-out domains, and with room for so many rounds."""
        if not self.every:
            return {}
        held_out = held_out if self.target else 0
        K = problem.num_domains
        everyone = 1 + K + held_out
        shapes = {"products": (everyone, everyone), "difference": (K,), "layer_difference": (K,), "lagged": (2,)}
        if self.divergence:
            shapes["divergence"] = (K, K)
        values = {name: state.step.new_zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        return {
            "copies": copies.start(algorithm, state, problem, held_out),
            "past": invariant_angle.start(predicting(state.params), 1 if self.cyclic else self.lag // self.every),
            "rounds": buffer.start({"round": state.step, **values}, room),
        }

    def followed(self, memory: Tree, before: State) -> Tree:
        """What it keeps of a round, measured or not."""
        if not (self.every and self.cyclic):
            return memory
        now = before.step % self.lag == 0
        return memory | {"past": invariant_angle.renewed(memory["past"], predicting(before.params), now)}

    def measured(self, memory: Tree, seen: Round) -> Tree:
        """What it keeps, with the measurements of this round: sums and products, from which `read` makes the rest."""
        optimizers, (sources, *others) = copies.trained(memory["copies"], seen)
        weights = predicting(seen.after.params)
        step = trees.subtract(weights, predicting(seen.before.params))  # h
        trajectories = [predicting(found.trajectories) for found in (sources, *others)]  # h_i
        squares, layers = differences(step, trajectories[0])
        values = {
            "round": seen.after.step,
            "products": products(step, trajectories),
            "difference": squares,
            "layer_difference": layers,
            "lagged": invariant_angle.lagged(memory["past"], weights, step),
        }
        if self.divergence:
            values["divergence"] = divergences(sources, seen)
        past = memory["past"] if self.cyclic else invariant_angle.remembered(memory["past"], weights)
        return {"copies": optimizers, "past": past, "rounds": buffer.written(memory["rounds"], values)}

    # And back on the host.

    def read(self, kept: buffer.Buffer) -> Rounds:
        """The rounds in a buffer of one trial; what is undefined is NaN."""
        rows = buffer.rows_of(kept)
        K = rows["difference"].shape[1]
        G = rows["products"]  # [R, 1 + K + T, 1 + K + T]
        squares = G.diagonal(dim1=1, dim2=2)
        magnitude = squares[:, 0]
        along, path = rows["lagged"].unbind(1)
        known = rows["round"] >= (1 if self.cyclic else self.lag)
        measured = {
            "round": rows["round"],
            "angle": _cosine(G[:, 0, 1 : K + 1], magnitude[:, None], squares[:, 1 : K + 1]),
            "difference": rows["difference"],
            "layer_difference": rows["layer_difference"],
            "magnitude": magnitude,
            "invariant": torch.where(known, _cosine(along, magnitude, path), torch.nan),
            "gramian": G[:, 1:, 1:],
        }
        if self.divergence:
            measured["divergence"] = rows["divergence"]
        return {name: value.tolist() for name, value in measured.items()}


def mean_angles(rounds: Rounds) -> list[float]:
    """The mean over rounds of cos(h_i, h), domain by domain, where it is defined."""
    columns = [[value for value in column if not math.isnan(value)] for column in zip(*rounds["angle"], strict=True)]
    return [fmean(column) if column else math.nan for column in columns]


def round_means(rounds: Rounds) -> dict[str, float | list[float]]:
    """Compute the metrics that a record holds about its measured rounds: means over these rounds.

    Args:
        rounds: Measurements as `Probe.read` returns them.

    Returns:
        ``angle``: cos(h_i, h) of each training domain. ``gip``: the gradient inner product Σ_{i≠j} h_i·h_j.
        ``alignment_variance`` and ``alignment_variance_relative``: variance over training domains of U_i = h_i·h.
        ``p_star``: p* around the mean of the h_i, relative to mean ‖h_i‖². ``hull`` and ``hull_cosine``, if held-out
        domains were measured: distance from the convex hull of the h_i and cosine with it, mean over these domains.
        ``divergence``, if it was measured: KL(p_i ‖ p_j), mean over pairs. NaN where no round has a value.
    """
    means: dict[str, float | list[float]] = {"angle": mean_angles(rounds)}
    if not rounds["round"]:
        return means | dict.fromkeys(PROBED[1:5], math.nan)
    cosines = torch.tensor(rounds["angle"], dtype=torch.float64)  # [R, K]
    magnitude = torch.tensor(rounds["magnitude"], dtype=torch.float64)  # [R]
    K = cosines.shape[1]
    everyone = torch.tensor(rounds["gramian"], dtype=torch.float64)  # [R, K + T, K + T]
    G = everyone[:, :K, :K]
    squares = G.diagonal(dim1=1, dim2=2)
    aligned = alignment_from_cosine(cosines, squares, magnitude)  # U_i
    means["gip"] = inner_product_sum(G).nanmean().item()
    means["alignment_variance"] = alignment_variance(aligned).nanmean().item()
    means["alignment_variance_relative"] = relative_alignment_variance(aligned, squares, magnitude).nanmean().item()
    means["p_star"] = worst_alignments(G, RADIUS).nanmean().item()
    if everyone.shape[1] > K:
        distance, cosine = hull_positions(everyone, K).unbind(-1)
        means |= {"hull": distance.nanmean().item(), "hull_cosine": cosine.nanmean().item()}
    if "divergence" in rounds:
        pairs = ~torch.eye(K, dtype=torch.bool)
        means["divergence"] = torch.tensor(rounds["divergence"], dtype=torch.float64)[:, pairs].nanmean().item()
    return means


def _cosine(product: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """From an inner product and two squared lengths; NaN where one of them is zero."""
    return (product / (first.sqrt() * second.sqrt())).clamp(-1, 1)


def _lag(every: int) -> int:
    return LAG if every < 1 else every * math.ceil(LAG / every)
