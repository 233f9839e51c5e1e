"""Read the measurements of a probe from the records of a run, and compute quantities from them."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations
from statistics import correlation, fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pogm.benchmark.results.record_file import RecordWarning, finite
from pogm.benchmark.results.records import Run
from pogm.diagnostics.probe import RADIUS
from pogm.pareto import (
    agreement,
    alignment_from_cosine,
    alignment_variance,
    inner_product_sum,
    relative_alignment_variance,
)
from pogm.pareto.hull import hull_positions, worst_alignments

Vector = list[float]
Matrix = list[list[float]]
Pairs = dict[tuple[int, int], float]  # by the indices i < j of two training domains


SHAPES = {  # axes of one round: K training domains, N trajectories
    "round": "",
    "cosine": "K",
    "difference": "K",
    "layer_difference": "K",
    "magnitude": "",
    "invariant": "",
    "gramian": "NN",
    "divergence": "KK",
}


@dataclass(frozen=True)
class Measured:
    """All measured rounds of a run, in order. Undefined values are NaN."""

    sources: tuple[str, ...]  # names of the K training domains, in the order of the lists below
    targets: tuple[str, ...]  # names of the T held-out domains with a measured trajectory
    round: list[int]  # numbers of the rounds
    cosine: list[Vector]  # cos(h_i, h): [K]
    difference: list[Vector]  # ‖θ_i − θ⁺‖²: [K]
    layer_difference: list[Vector]  # Σ over weight tensors of ‖θ_i − θ⁺‖: [K]
    magnitude: Vector  # ‖h‖²
    invariant: Vector  # cos(θ^(r) − θ^(r−1), θ^(r) − θ^(r−τ))
    gramian: list[Matrix]  # h_i·h_j, sources first: [K + T, K + T]
    divergence: list[Matrix] | None = None  # KL(p_i ‖ p_j): [K, K]


def read_measurements(run: Run) -> Measured | None:
    """Return the measurements in the records of a run; None if nothing was measured.

    Measurements that are incomplete or have another shape are left out with a `RecordWarning`.
    """
    parts = [record["rounds"] for record in run.records if record.get("rounds") is not None]
    if not any(part.get("round") for part in parts):
        return None
    names = [name for name in SHAPES if name in parts[0]]
    sources = tuple(run.domains[i] for i in run.train_domains)
    try:
        values = {name: [_numbers(value) for part in parts for value in part[name]] for name in names}
        targets = tuple(run.domains[i] for i in run.trial["test_domains"][: len(values["gramian"][0]) - len(sources)])
        sizes = {"K": len(sources), "N": len(sources) + len(targets)}
        for name, kind in SHAPES.items():
            wanted = [sizes[axis] for axis in kind]
            if name in values and any(_shape(value) != wanted for value in values[name]):
                raise ValueError(f"{name} should be {wanted} in every round")
        if len({len(rounds) for rounds in values.values()}) > 1:
            raise ValueError("some measurements have more rounds than others")
        return Measured(sources, targets, **values | {"round": [int(number) for number in values["round"]]})
    except (KeyError, TypeError, ValueError, IndexError) as error:
        warnings.warn(
            f"{run.folder}: measurements left out ({type(error).__name__}: {error})", RecordWarning, stacklevel=2
        )
        return None


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else finite(value)


def _shape(value: Any) -> list[int]:
    """Return the shape of nested lists; -1 is the length of ragged lists."""
    if not isinstance(value, list):
        return []
    below = [_shape(item) for item in value]
    return [len(value), *below[0]] if below and all(shape == below[0] for shape in below) else [len(value), -1]


# Cosines of two domains with the step, compared (Figures 2 and 3).


def correlations(m: Measured) -> Pairs:
    """Return the Pearson correlation over rounds of cos(h_i, h) and cos(h_j, h); NaN if one of them is constant."""
    return {pair: _correlation(both) for pair, both in _cosines(m)}


def gaps(m: Measured) -> Pairs:
    """Return the mean over rounds of |cos(h_i, h) − cos(h_j, h)|."""
    return {pair: mean(abs(a - b) for a, b in both) for pair, both in _cosines(m)}


def _cosines(m: Measured) -> Iterator[tuple[tuple[int, int], list[tuple[float, float]]]]:
    for i, j in combinations(range(len(m.sources)), 2):
        both = [(cosines[i], cosines[j]) for cosines in m.cosine]
        yield (i, j), [(a, b) for a, b in both if not math.isnan(a) and not math.isnan(b)]


def _correlation(points: Sequence[tuple[float, float]]) -> float:
    if any(len(set(values)) < 2 for values in zip(*points, strict=True)) or not points:
        return math.nan
    return correlation(*zip(*points, strict=True))


# Quantities of every round.


def agreements(m: Measured) -> Vector:
    """Return the mean of cos(h_i, h_j) over pairs of training domains, for every round."""
    numbers: Vector = agreement(_sources(m)).tolist()
    return numbers


def conflicts(m: Measured) -> float:
    """Return the share of rounds in which h_i·h_j < 0 for some two training domains."""
    G = _sources(m)
    known = G[G.isfinite().all(-1).all(-1)]
    return mean((known < 0).any(-1).any(-1).tolist())


def gip(m: Measured) -> Vector:
    """Return the gradient inner product Σ_{i≠j} h_i·h_j over ordered pairs of training domains, for every round."""
    numbers: Vector = inner_product_sum(_sources(m)).tolist()
    return numbers


def alignments(m: Measured) -> list[Vector]:
    """Return the alignment U_i = h_i·h of each training domain with the step of the run, for every round: [R][K].

    Derived from the recorded cosine and lengths: h_i·h = cos(h_i, h)·‖h_i‖·‖h‖.
    """
    numbers: list[Vector] = _alignments(m).tolist()
    return numbers


def alignment_variances(m: Measured) -> Vector:
    """Return the variance over training domains of U_i = h_i·h, for every round: the quantity of Theorem 2."""
    numbers: Vector = alignment_variance(_alignments(m)).tolist()
    return numbers


def relative_alignment_variances(m: Measured) -> Vector:
    """Return the variance of U_i divided by ‖h‖²·mean ‖h_i‖², for every round: between 0 and 1, no unit."""
    squares = _sources(m).diagonal(dim1=1, dim2=2)
    numbers: Vector = relative_alignment_variance(_alignments(m), squares, _doubles(m.magnitude)).tolist()
    return numbers


def opposed(m: Measured) -> float:
    """Return the share of rounds in which the step goes against some training domain: min_i h_i·h < 0."""
    aligned = _alignments(m)
    known = aligned[aligned.isfinite().all(-1)]
    return mean((known < 0).any(-1).tolist())


def worst(m: Measured, radius: float = RADIUS) -> Vector:
    """Return p* = max_d min_i h_i·d over directions d in the ball around the mean, for every round.

    It is relative to the mean of ‖h_i‖², so that runs with different step lengths can be compared. If p* ≤ 0, no
    direction in the ball helps every domain.
    """
    numbers: Vector = worst_alignments(_sources(m), radius).tolist()
    return numbers


class Hull(NamedTuple):
    """Position of a held-out domain's trajectory relative to the convex hull of the training domains' trajectories."""

    distance: float  # from the hull, relative to the length of the trajectory; 0 inside
    cosine: float  # with the nearest point of the hull


def hull(m: Measured) -> list[list[Hull]]:
    """Return the position of every held-out domain, for every round."""
    if not m.targets:
        return [[] for _ in m.round]
    positions = hull_positions(_gramians(m), len(m.sources)).tolist()
    return [[Hull(*position) for position in of_round] for of_round in positions]


def divergences(m: Measured) -> Vector:
    """Return the mean over ordered pairs of KL(p_i ‖ p_j), for every round; empty if it was not measured."""
    pairs = list(permutations(range(len(m.sources)), 2))
    return [mean(matrix[i][j] for i, j in pairs) for matrix in m.divergence or ()]


def divergence(m: Measured) -> Matrix | None:
    """Return the mean over rounds of KL(p_i ‖ p_j); None if it was not measured."""
    if m.divergence is None:
        return None
    K = range(len(m.sources))
    return [[mean(matrix[i][j] for matrix in m.divergence) for j in K] for i in K]


# Summary.


def summary(m: Measured) -> dict[str, float]:
    """Return the mean over rounds, domains and pairs of each measurement that the run has."""
    numbers = {
        "cosine": mean(chain.from_iterable(m.cosine)),
        "difference": mean(chain.from_iterable(m.difference)),
        "layer_difference": mean(chain.from_iterable(m.layer_difference)),
        "invariant": mean(m.invariant),
        "magnitude": mean(m.magnitude),
        "agreement": mean(agreements(m)),
        "correlation": mean(correlations(m).values()),
        "gap": mean(gaps(m).values()),
        "conflicts": conflicts(m),
        "opposed": opposed(m),
        "gip": mean(gip(m)),
        "alignment_variance": mean(alignment_variances(m)),
        "alignment_variance_relative": mean(relative_alignment_variances(m)),
        "worst": mean(worst(m)),
    }
    if m.targets:
        positions = list(chain.from_iterable(hull(m)))
        numbers["hull"] = mean(position.distance for position in positions)
        numbers["hull_cosine"] = mean(position.cosine for position in positions)
    matrix = divergence(m)
    if matrix is not None:
        numbers["divergence"] = mean(matrix[i][j] for i in range(len(matrix)) for j in range(len(matrix)) if i != j)
    return numbers


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _alignments(m: Measured) -> Tensor:
    """Return U_i = h_i·h: [R, K]."""
    squares = _sources(m).diagonal(dim1=1, dim2=2)
    return alignment_from_cosine(_doubles(m.cosine), squares, _doubles(m.magnitude))


def _gramians(m: Measured) -> Tensor:
    """Return the Gramians of all trajectories: [R, K + T, K + T]."""
    return _doubles(m.gramian)


def _sources(m: Measured) -> Tensor:
    """Return the Gramians of the training domains: [R, K, K]."""
    K = len(m.sources)
    return _gramians(m)[:, :K, :K]
