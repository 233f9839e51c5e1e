"""Ranks over the datasets, as in the last columns of the paper's Table 1, and the paper's own beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pogm.benchmark.results.published import ALL_DATASETS, paper_ranks
from pogm.benchmark.results.ranking import rankings
from pogm.benchmark.results.selection import TEST_DOMAIN
from pogm.benchmark.results.tables import Cell, Table
from pogm.experiments.base import folded

MEANS = ("arithmetic mean", "geometric mean", "median")
NOTE = (
    "Ranks are over the datasets, by the accuracies as printed, among those rows of the paper that have one on all of "
    "them; equals share the better rank. Lower is better."
)
CONTROLS = (
    "Rows that are not in the paper are controls: they have no rank (X) and do not change the ranks of the others."
)
PAPER = (
    "The columns of the paper are its ranks as printed: 18 methods on its seven datasets. EQRM's 8.99 would be 8.86 by "
    "the paper's own accuracies."
)


@dataclass(frozen=True)
class RankedTable(Table):
    """A table whose last columns are ranks, of which the lowest is the best."""

    accuracies: int = 0  # number of columns before the ranks

    @property
    def trials(self) -> int:
        return max((cell.n for row in self.cells for cell in row[: self.accuracies - 1]), default=0)

    @property
    def empty(self) -> bool:
        return all(cell.mean is None for row in self.cells for cell in row[: self.accuracies])

    def best(self, column: int) -> frozenset[int]:
        """The rows that share the highest accuracy or the lowest rank, as printed."""
        if column < self.accuracies:
            return super().best(column)
        ranks = {i: row[column].printed for i, row in enumerate(self.cells)}
        known = {i: rank for i, rank in ranks.items() if rank is not None}
        return frozenset(i for i, rank in known.items() if rank == min(known.values()) and len(known) > 1)


def with_ranks(averages: Table, ranked: Sequence[str]) -> Table:
    """Add ranks to a table of averages; return it unchanged where there is only one dataset.

    Args:
        averages: Rows against datasets.
        ranked: Names of the rows that are ranked, among each other. The other rows are controls.

    Returns:
        The table with our ranks and, under test-domain selection, which is the paper's, the ranks that it prints.
    """
    if len(averages.columns) < 3:
        return averages
    numbers = dict(zip(averages.rows, averages.cells, strict=True))
    taking_part = tuple(name for name in averages.rows if name in ranked)
    among = replace(averages, rows=taking_part, cells=tuple(numbers[name] for name in taking_part))
    ours = {
        found.label: [
            Cell(mean, n=len(found.ranks)) for mean in (found.arithmetic_mean, found.geometric_mean, found.median)
        ]
        for found in rankings(among)
    }
    titles = [f"Rank, {mean}" for mean in MEANS]
    keys = [f"rank, {mean}" for mean in MEANS]
    notes = [NOTE, *([CONTROLS] if len(taking_part) < len(averages.rows) else [])]
    theirs: dict[str, list[Cell]] = {}
    if averages.selection is TEST_DOMAIN:
        theirs = {folded(name): [Cell(rank) for rank in ranks] for name, ranks in paper_ranks().items()}
        titles += [f"Paper, {mean.removesuffix(' mean')}" for mean in MEANS]
        keys += [f"paper's rank, {mean}" for mean in MEANS]
        notes.append(PAPER)

    def cells(name: str) -> list[Cell]:
        none = [Cell(reason="not ranked" if name in ranked else "")] * len(MEANS)
        return [*ours.get(name, none), *(theirs.get(folded(name), [Cell()] * len(MEANS)) if theirs else [])]

    table = replace(
        averages,
        columns=(*averages.columns, *titles),
        keys=(*averages.keys, *((ALL_DATASETS, key) for key in keys)),
        cells=tuple((*numbers[name], *cells(name)) for name in averages.rows),
        footnotes=(*averages.footnotes, *notes),
    )
    return RankedTable(**vars(table), accuracies=len(averages.columns))
