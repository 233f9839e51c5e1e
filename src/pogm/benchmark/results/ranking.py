"""Ranks over datasets, as in the last columns of the paper's Table 1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median

from pogm.benchmark.results.table import Table

SUMMARIES: dict[str, Callable[[Sequence[int]], float]] = {  # columns of rank tables
    "arithmetic mean": fmean,
    "geometric mean": geometric_mean,
    "median": median,
}


def competition_ranks(values: Sequence[float]) -> list[int]:
    """Return the ranks of values: the largest is 1, equal values share the better rank, the next rank is skipped."""
    return [1 + sum(other > value for other in values) for value in values]


@dataclass(frozen=True)
class Ranking:
    """Ranks of one algorithm over datasets; lower is better."""

    label: str
    ranks: tuple[int, ...]

    def summaries(self) -> dict[str, float]:
        """Return the means and the median of the ranks, by the names in `SUMMARIES`."""
        return {name: float(summarise(self.ranks)) for name, summarise in SUMMARIES.items()}


def rankings(averages: Table) -> list[Ranking]:
    """Return ranks by printed accuracy on every dataset, of the rows with an accuracy on all datasets.

    Args:
        averages: Algorithms against datasets, as from `averages_table`.
    """
    datasets = [j for j, column in enumerate(averages.columns) if column.per_trial]
    printed = {row.key: [averages.columns[j].rounded(row.cells[j]) for j in datasets] for row in averages.rows}
    complete = {label: [v for v in row if v is not None] for label, row in printed.items() if None not in row}
    by_dataset = [competition_ranks(column) for column in zip(*complete.values(), strict=True)]
    return [Ranking(label, tuple(ranks[i] for ranks in by_dataset)) for i, label in enumerate(complete)]
