"""Ranks over datasets, as in the last columns of the paper's Table 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median

from pogm.benchmark.results.tables import Table


def competition_ranks(values: Sequence[float]) -> list[int]:
    """Best (largest) is 1; equals share the better rank, and the next one is skipped."""
    return [1 + sum(other > value for other in values) for value in values]


@dataclass(frozen=True)
class Ranking:
    """One algorithm's ranks over datasets; lower is better."""

    label: str
    ranks: tuple[int, ...]

    @property
    def arithmetic_mean(self) -> float:
        return fmean(self.ranks)

    @property
    def geometric_mean(self) -> float:
        return geometric_mean(self.ranks)

    @property
    def median(self) -> float:
        return median(self.ranks)


def rankings(averages: Table) -> list[Ranking]:
    """Ranks by printed accuracy on every dataset, among the algorithms that have a number on all of them."""
    printed = {
        label: [cell.printed for cell in row[:-1]] for label, row in zip(averages.rows, averages.cells, strict=True)
    }
    full = {label: [v for v in row if v is not None] for label, row in printed.items() if None not in row}
    by_dataset = [competition_ranks(column) for column in zip(*full.values(), strict=True)]
    return [Ranking(label, tuple(ranks[i] for ranks in by_dataset)) for i, label in enumerate(full)]
