"""The probe: measures during training what the paper and its theory describe."""

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
from pogm.diagnostics.copies import start_optimizers, train_copies
from pogm.diagnostics.measurements import (
    Buffer,
    Round,
    append_to_buffer,
    append_to_history,
    clear_buffer,
    distances,
    divergences,
    inner_products,
    lagged_products,
    predicting_weights,
    read_buffer,
    replace_history,
    start_buffer,
    start_history,
)
from pogm.pareto import alignment_from_cosine, alignment_variance, inner_product_sum, relative_alignment_variance
from pogm.pareto.hull import hull_positions, worst_alignments

MOST_SNAPSHOTS = 1000  # of the weights, for the lag
MOST_ROUNDS = 10**6  # measured between two evaluations
LAG = 10  # default of tau, in rounds
RADIUS = 0.5  # radius of the ball for p*, relative to the length of the mean trajectory: the paper's kappa
PROBED = (  # metrics of `round_means`; the last three are optional
    "cosine",
    "gip",
    "alignment_variance",
    "alignment_variance_relative",
    "p_star",
    "hull",
    "hull_cosine",
    "divergence",
)

Rounds = dict[str, list[Any]]  # each measurement: one number, list or matrix per measured round


@dataclass(frozen=True)
class Probe:
    r"""Compares the step of a round with the steps that each domain would take by itself.

    Round r takes the weights from :math:`\theta^-` to :math:`\theta^+`. A copy that sees only the minibatches of domain
    i ends at :math:`\theta_i`. With :math:`h = \theta^+ - \theta^-` and :math:`h_i = \theta_i - \theta^-`, the probe
    measures

    .. math:: \|\theta_i - \theta^+\|^2, \quad \cos(h_i, h), \quad \|h\|^2, \quad h_i^\top h_j, \quad
        \cos(h, \theta^{(r)} - \theta^{(r - \tau)}).

    The measurements do not influence the run.

    Copies that the algorithm does not train itself are trained only in measured rounds. With ``every`` above 1, their
    Adam has seen fewer minibatches than the Adam of the run, so the measured cosines are too small.
    """

    every: int = hyper(0, least=0)  # rounds between two measurements; 0 never measures
    lag: int = hyper(LAG, least=1)  # tau, in rounds
    cyclic: bool = hyper(False)  # as the authors: measure from a snapshot that is replaced every ``lag`` rounds
    target: bool = hyper(False)  # measure trajectories of held-out domains, too; the run never trains on their labels
    divergence: bool = hyper(False)  # measure how much the predictions of the copies differ

    def __post_init__(self) -> None:
        validate(self)
        if self.every and not self.cyclic and self.lag % self.every:
            raise UsageError(
                f"Expected a lag that is a multiple of {self.every} rounds, because only measured rounds are kept; "
                f"found {self.lag}. Choose a multiple of {self.every}, for example {_lag(self.every)}, or the cyclic "
                "lag."
            )
        if self.every and not self.cyclic and self.lag // self.every > MOST_SNAPSHOTS:
            raise UsageError(
                f"Expected a lag of at most {MOST_SNAPSHOTS} measured rounds, because the weights of each are kept; "
                f"found {self.lag // self.every}. Choose a shorter lag, or measure fewer rounds."
            )

    @classmethod
    def each(cls, every: int) -> Self:
        """Return a probe for every ``every`` rounds, with the default lag, rounded up to a multiple of ``every``."""
        return cls(every, _lag(every))

    def measures(self, number: int) -> bool:
        """Return True if the probe measures the round with this number, counted from 1."""
        return self.every > 0 and number % self.every == 0

    def capacity(self, ends: Sequence[int]) -> int:
        """Return the largest number of measured rounds between two evaluations.

        Args:
            ends: Number of rounds before each evaluation.

        Raises:
            UsageError: The number is too large to keep the measurements in memory.
        """
        counts = [end // self.every if self.every else 0 for end in ends]
        most = max(later - earlier for earlier, later in pairwise([0, *counts]))
        if most > MOST_ROUNDS:
            raise UsageError(
                f"Expected at most {MOST_ROUNDS} measured rounds between two evaluations; found {most}. Evaluate more "
                "often, or measure fewer rounds."
            )
        return most

    # The following methods run on the device. The keys of their trees are part of the checkpoint format.

    def start(self, algorithm: Algorithm, state: State, problem: Problem, held_out: int, capacity: int) -> Tree:
        """Return the memory of the probe before the first round.

        Args:
            algorithm: Algorithm of the run.
            state: State before the first round.
            problem: Problem of the run.
            held_out: Number of held-out domains.
            capacity: Number of measured rounds that the buffer can hold.
        """
        if not self.every:
            return {}
        held_out = held_out if self.target else 0
        K = problem.num_domains
        rows = 1 + K + held_out  # h, then all trajectories
        shapes = {"products": (rows, rows), "difference": (K,), "layer_difference": (K,), "lagged": (2,)}
        if self.divergence:
            shapes["divergence"] = (K, K)
        values = {name: state.step.new_zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        return {
            "copies": start_optimizers(algorithm, state, problem, held_out),
            "past": start_history(predicting_weights(state.params), 1 if self.cyclic else self.lag // self.every),
            "rounds": start_buffer({"round": state.step, **values}, capacity),
        }

    def update_snapshot(self, memory: Tree, before: State) -> Tree:
        """Replace the snapshot of the cyclic lag if it is due. Call this in every round, measured or not."""
        if not (self.every and self.cyclic):
            return memory
        is_due = before.step % self.lag == 0
        return memory | {"past": replace_history(memory["past"], predicting_weights(before.params), is_due)}

    def measure(self, memory: Tree, measured: Round) -> Tree:
        """Append the measurements of a round to the memory. They are inner products, which `read` converts."""
        optimizers, (sources, *others) = train_copies(memory["copies"], measured)
        weights = predicting_weights(measured.after.params)
        step = trees.subtract(weights, predicting_weights(measured.before.params))  # h
        trajectories = [predicting_weights(copies.trajectories) for copies in (sources, *others)]  # h_i
        squares, layers = distances(step, trajectories[0])
        values = {
            "round": measured.after.step,
            "products": inner_products(step, trajectories),
            "difference": squares,
            "layer_difference": layers,
            "lagged": lagged_products(memory["past"], weights, step),
        }
        if self.divergence:
            values["divergence"] = divergences(sources, measured)
        past = memory["past"] if self.cyclic else append_to_history(memory["past"], weights)
        return {"copies": optimizers, "past": past, "rounds": append_to_buffer(memory["rounds"], values)}

    def clear(self, memory: Tree) -> Tree:
        """Remove the measured rounds from the memory."""
        return memory | {"rounds": clear_buffer(memory["rounds"])}

    # The following methods run on the host.

    def read(self, buffer: Buffer) -> Rounds:
        """Convert the measured rounds of one trial to metrics. Undefined values are NaN."""
        rows = read_buffer(buffer)
        K = rows["difference"].shape[1]
        G = rows["products"]  # [R, 1 + K + T, 1 + K + T]
        squares = G.diagonal(dim1=1, dim2=2)
        magnitude = squares[:, 0]
        along, path = rows["lagged"].unbind(1)
        is_defined = rows["round"] >= (1 if self.cyclic else self.lag)
        measured = {
            "round": rows["round"],
            "cosine": _cosine(G[:, 0, 1 : K + 1], magnitude[:, None], squares[:, 1 : K + 1]),
            "difference": rows["difference"],
            "layer_difference": rows["layer_difference"],
            "magnitude": magnitude,
            "invariant": torch.where(is_defined, _cosine(along, magnitude, path), torch.nan),
            "gramian": G[:, 1:, 1:],
        }
        if self.divergence:
            measured["divergence"] = rows["divergence"]
        return {name: value.tolist() for name, value in measured.items()}


def mean_cosines(rounds: Rounds) -> list[float]:
    """Return the mean of cos(h_i, h) over the rounds in which it is defined, for each domain."""
    columns = [[value for value in column if not math.isnan(value)] for column in zip(*rounds["cosine"], strict=True)]
    return [fmean(column) if column else math.nan for column in columns]


def round_means(rounds: Rounds) -> dict[str, float | list[float]]:
    """Return the metrics of a record about its measured rounds: means over these rounds.

    Args:
        rounds: Measurements as `Probe.read` returns them.

    Returns:
        ``cosine``: cos(h_i, h) of each training domain. ``gip``: the gradient inner product Σ_{i≠j} h_i·h_j.
        ``alignment_variance`` and ``alignment_variance_relative``: variance over training domains of U_i = h_i·h.
        ``p_star``: p* around the mean of the h_i, relative to mean ‖h_i‖². ``hull`` and ``hull_cosine``, if held-out
        domains were measured: distance from the convex hull of the h_i and cosine with it, mean over these domains.
        ``divergence``, if it was measured: KL(p_i ‖ p_j), mean over pairs. NaN where no round has a value.
    """
    means: dict[str, float | list[float]] = {"cosine": mean_cosines(rounds)}
    if not rounds["round"]:
        return means | dict.fromkeys(PROBED[1:5], math.nan)
    cosines = torch.tensor(rounds["cosine"], dtype=torch.float64)  # [R, K]
    magnitude = torch.tensor(rounds["magnitude"], dtype=torch.float64)  # [R]
    K = cosines.shape[1]
    gramians = torch.tensor(rounds["gramian"], dtype=torch.float64)  # [R, K + T, K + T]
    G = gramians[:, :K, :K]
    squares = G.diagonal(dim1=1, dim2=2)
    alignments = alignment_from_cosine(cosines, squares, magnitude)  # U_i
    means["gip"] = inner_product_sum(G).nanmean().item()
    means["alignment_variance"] = alignment_variance(alignments).nanmean().item()
    means["alignment_variance_relative"] = relative_alignment_variance(alignments, squares, magnitude).nanmean().item()
    means["p_star"] = worst_alignments(G, RADIUS).nanmean().item()
    if gramians.shape[1] > K:
        distance, cosine = hull_positions(gramians, K).unbind(-1)
        means |= {"hull": distance.nanmean().item(), "hull_cosine": cosine.nanmean().item()}
    if "divergence" in rounds:
        pairs = ~torch.eye(K, dtype=torch.bool)
        means["divergence"] = torch.tensor(rounds["divergence"], dtype=torch.float64)[:, pairs].nanmean().item()
    return means


def _cosine(product: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine, given an inner product and two squared lengths. It is NaN if a length is zero."""
    return (product / (first.sqrt() * second.sqrt())).clamp(-1, 1)


def _lag(every: int) -> int:
    """Return the default lag, rounded up to a multiple of ``every``."""
    return LAG if every < 1 else every * math.ceil(LAG / every)
