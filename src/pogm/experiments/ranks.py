"""The last columns of the paper's Table 1: a row's ranks over the datasets."""

from dataclasses import dataclass, replace

from pogm.benchmark.published import ALL_DATASETS
from pogm.benchmark.ranking import rankings
from pogm.benchmark.tables import Cell, Table

MEANS = ("arithmetic mean", "geometric mean", "median")
NOTE = (
    "Ranks are over the datasets, by the accuracies as printed, among the rows that have one on all of them; "
    "equals share the better rank. Lower is better."
)


@dataclass(frozen=True)
class RankedTable(Table):
    """A table whose last columns are ranks, of which the lowest is the best."""

    @property
    def trials(self) -> int:
        return max((cell.n for row in self.cells for cell in row[: -len(MEANS) - 1]), default=0)

    def best(self, column: int) -> frozenset[int]:
        """The rows that share the highest accuracy or the lowest rank, as printed."""
        if column < len(self.columns) - len(MEANS):
            return super().best(column)
        ranks = {i: row[column].printed for i, row in enumerate(self.cells)}
        known = {i: rank for i, rank in ranks.items() if rank is not None}
        return frozenset(i for i, rank in known.items() if rank == min(known.values()) and len(known) > 1)


def with_ranks(averages: Table) -> Table:
    """A table of averages with its ranks; as it is where there is but one dataset."""
    if len(averages.columns) < 3:
        return averages
    ranked = {
        ranking.label: [
            Cell(mean, n=len(ranking.ranks))
            for mean in (ranking.arithmetic_mean, ranking.geometric_mean, ranking.median)
        ]
        for ranking in rankings(averages)
    }
    none = [Cell(reason="not ranked")] * len(MEANS)
    rows = zip(averages.rows, averages.cells, strict=True)
    table = replace(
        averages,
        columns=(*averages.columns, *(f"Rank, {mean}" for mean in MEANS)),
        keys=(*averages.keys, *((ALL_DATASETS, f"rank, {mean}") for mean in MEANS)),
        cells=tuple((*cells, *ranked.get(label, none)) for label, cells in rows),
        footnotes=(*averages.footnotes, NOTE),
    )
    return RankedTable(**vars(table))
