"""Friedman ranks and Nemenyi's critical difference, to compare many methods at once (Demšar, 2006)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

STEPS = 400  # of the integral over z
REACH = 8.0  # the normal density is below 1e-14 beyond


@dataclass(frozen=True)
class RankComparison:
    """Mean ranks of methods over blocks; 1 is the best. Two methods differ if their ranks differ by more than this."""

    ranks: Mapping[str, float]  # by method, the best first
    blocks: int
    difference: float  # critical difference at the level of 5 %

    def groups(self) -> list[tuple[str, ...]]:
        """Return the largest sets of methods, neighbours in rank, that do not differ from each other."""
        names, found = list(self.ranks), []
        end = 0
        for start, name in enumerate(names):
            last = max(i for i in range(len(names)) if self.ranks[names[i]] - self.ranks[name] <= self.difference)
            if last >= end and last > start:
                found.append(tuple(names[start : last + 1]))
                end = last + 1
        return found


def compare_ranks(blocks: Sequence[Mapping[str, float]]) -> RankComparison:
    r"""Rank methods in every block, and return mean ranks with the critical difference of Nemenyi's test.

    .. math:: CD = \frac{q_{0.05, k}}{\sqrt 2} \sqrt{\frac{k (k + 1)}{6 N}}

    for k methods and N blocks; q is a quantile of the studentized range. Equal values share the mean of their ranks.

    Args:
        blocks: In each block the value of every method; larger is better. Blocks should be independent.
    """
    methods = list(blocks[0])
    ranks = {name: fmean(_rank(block, name) for block in blocks) for name in methods}
    k = len(methods)
    difference = range_quantile(0.95, k) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * len(blocks)))
    return RankComparison(dict(sorted(ranks.items(), key=lambda item: item[1])), len(blocks), difference)


def _rank(block: Mapping[str, float], name: str) -> float:
    better = sum(value > block[name] for value in block.values())
    equal = sum(value == block[name] for value in block.values())
    return better + (equal + 1) / 2


def range_quantile(probability: float, count: int) -> float:
    """Return the quantile of the range of `count` ≥ 2 independent standard normal variables, by bisection."""
    low, high = 0.0, 2 * REACH
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _range_probability(middle, count) < probability else (low, middle)
    return low


def _range_probability(width: float, count: int) -> float:
    """Return P(range ≤ width) = count ∫ φ(z) (Φ(z) − Φ(z − width))^(count − 1) dz."""
    step = 2 * REACH / STEPS
    total = 0.0
    for number in range(STEPS + 1):
        z = -REACH + number * step
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        total += density * (_normal(z) - _normal(z - width)) ** (count - 1)
    return count * total * step


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
