"""What a probe measured on a run, read back, and what follows from it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import correlation, fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm.benchmark.results.records import Run, finite
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
Pairs = dict[tuple[int, int], float]  # by the places i < j of two training domains


SHAPES = {  # of one round; K training domains, N trajectories
    "round": "",
    "angle": "K",
    "difference": "K",
    "layer_difference": "K",
    "magnitude": "",
    "invariant": "",
    "gramian": "NN",
    "divergence": "KK",
}


@dataclass(frozen=True)
class Measured:
    """All rounds of a run that were measured, in order; what is undefined is NaN."""

    sources: tuple[str, ...]  # the K training domains, in the order of all below
    targets: tuple[str, ...]  # those of the held-out domains whose trajectories were measured
    round: list[int]
    angle: list[Vector]  # cos(h_i, h): [K]
    difference: list[Vector]  # ‖θ_i − θ⁺‖²: [K]
    layer_difference: list[Vector]  # Σ over weight tensors of ‖θ_i − θ⁺‖: [K]
    magnitude: Vector  # ‖h‖²
    invariant: Vector  # cos(θ^(r) − θ^(r−1), θ^(r) − θ^(r−τ))
    gramian: list[Matrix]  # h_i·h_j, sources first: [K + T, K + T]
    divergence: list[Matrix] | None = None  # KL(p_i ‖ p_j): [K, K]


def measured(run: Run) -> Measured | None:
    """What a run's records hold of it; None where nothing was measured."""
    parts = [record["rounds"] for record in run.records if "rounds" in record]
    if not any(isinstance(part, Mapping) and part.get("round") for part in parts):
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
            raise ValueError("some have more rounds than others")
        return Measured(sources, targets, **values | {"round": [int(number) for number in values["round"]]})
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"Expected the measurements that a probe wrote in {run.folder}; found: {error}. "
            "Restore the records from a copy, or delete the folder and run it again."
        ) from error


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else finite(value)


def _shape(value: Any) -> list[int]:
    """Of nested lists; ragged ones have none."""
    if not isinstance(value, list):
        return []
    below = [_shape(item) for item in value]
    return [len(value), *below[0]] if below and all(shape == below[0] for shape in below) else [len(value), -1]


# The angles of two domains, against each other (Figures 2 and 3).


def correlations(m: Measured) -> Pairs:
    """Pearson's ρ of cos(h_i, h) and cos(h_j, h) over rounds; NaN where one of them never changes."""
    return {pair: _correlation(both) for pair, both in _angles(m)}


def gaps(m: Measured) -> Pairs:
    """The mean over rounds of |cos(h_i, h) − cos(h_j, h)|."""
    return {pair: mean(abs(a - b) for a, b in both) for pair, both in _angles(m)}


def _angles(m: Measured) -> Iterator[tuple[tuple[int, int], list[tuple[float, float]]]]:
    for i, j in combinations(range(len(m.sources)), 2):
        both = [(angles[i], angles[j]) for angles in m.angle]
        yield (i, j), [(a, b) for a, b in both if not math.isnan(a) and not math.isnan(b)]


def _correlation(points: Sequence[tuple[float, float]]) -> float:
    if any(len(set(values)) < 2 for values in zip(*points, strict=True)) or not points:
        return math.nan
    return correlation(*zip(*points, strict=True))


# Who agrees with whom, round by round.


def agreements(m: Measured) -> Vector:
    """The mean of cos(h_i, h_j) over pairs of training domains."""
    numbers: Vector = agreement(_sources(m)).tolist()
    return numbers


def conflicts(m: Measured) -> float:
    """The share of rounds in which the trajectories of some two training domains point against each other."""
    G = _sources(m)
    known = G[G.isfinite().all(-1).all(-1)]
    return mean((known < 0).any(-1).any(-1).tolist())


def gip(m: Measured) -> Vector:
    """Raw gradient inner product of every round, Σ_{i≠j} h_i·h_j over ordered pairs of training domains."""
    numbers: Vector = inner_product_sum(_sources(m)).tolist()
    return numbers


def alignments(m: Measured) -> list[Vector]:
    """Alignment U_i = h_i·h of each training domain with the step that the run took, of every round: [R][K].

    Derived from the recorded cosine and lengths: h_i·h = cos(h_i, h)·‖h_i‖·‖h‖.
    """
    numbers: list[Vector] = _alignments(m).tolist()
    return numbers


def alignment_variances(m: Measured) -> Vector:
    """Variance over training domains of U_i = h_i·h, of every round: the quantity of Theorem 2."""
    numbers: Vector = alignment_variance(_alignments(m)).tolist()
    return numbers


def relative_alignment_variances(m: Measured) -> Vector:
    """Variance of U_i divided by ‖h‖²·mean ‖h_i‖², of every round: between 0 and 1, no unit."""
    squares = _sources(m).diagonal(dim1=1, dim2=2)
    numbers: Vector = relative_alignment_variance(_alignments(m), squares, _doubles(m.magnitude)).tolist()
    return numbers


def opposed(m: Measured) -> float:
    """Share of rounds in which the step goes against some training domain: min_i h_i·h < 0."""
    aligned = _alignments(m)
    known = aligned[aligned.isfinite().all(-1)]
    return mean((known < 0).any(-1).tolist())


def worst(m: Measured, radius: float = RADIUS) -> Vector:
    """p*, the alignment min_i h_i·d of the worst-off domain with the best direction in the ball around the mean.

    Relative to the mean of ‖h_i‖², so that runs with small steps and large ones compare. Not above zero: no direction
    in the ball helps every domain.
    """
    numbers: Vector = worst_alignments(_sources(m), radius).tolist()
    return numbers


class Hull(NamedTuple):
    """Where a held-out domain's trajectory lies, seen from the hull of the training domains'."""

    distance: float  # from the hull, relative to its own length; 0 inside
    cosine: float  # with the point of the hull that is nearest


def hull(m: Measured) -> list[list[Hull]]:
    """Of every round and held-out domain."""
    if not m.targets:
        return [[] for _ in m.round]
    positions = hull_positions(_everyone(m), len(m.sources)).tolist()
    return [[Hull(*place) for place in places] for places in positions]


def divergence(m: Measured) -> Matrix | None:
    """The mean over rounds of KL(p_i ‖ p_j)."""
    if m.divergence is None:
        return None
    K = range(len(m.sources))
    return [[mean(matrix[i][j] for matrix in m.divergence) for j in K] for i in K]


# One number of each.


def summary(m: Measured) -> dict[str, float]:
    """The mean of each measurement over rounds, domains and pairs, in the order of a table; those that there are."""
    numbers = {
        "angle": mean(chain.from_iterable(m.angle)),
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
        places = list(chain.from_iterable(hull(m)))
        numbers["hull"] = mean(place.distance for place in places)
        numbers["hull_cosine"] = mean(place.cosine for place in places)
    matrix = divergence(m)
    if matrix is not None:
        numbers["divergence"] = mean(matrix[i][j] for i in range(len(matrix)) for j in range(len(matrix)) if i != j)
    return numbers


def mean(values: Iterable[float]) -> float:
    """Of those that are defined; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _alignments(m: Measured) -> Tensor:
    """U_i = h_i·h: [R, K]."""
    squares = _sources(m).diagonal(dim1=1, dim2=2)
    return alignment_from_cosine(_doubles(m.angle), squares, _doubles(m.magnitude))


def _everyone(m: Measured) -> Tensor:
    return _doubles(m.gramian)


def _sources(m: Measured) -> Tensor:
    K = len(m.sources)
    return _everyone(m)[:, :K, :K]
