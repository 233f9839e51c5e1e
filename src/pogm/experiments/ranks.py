"""Ranks over datasets, as in the last columns of the paper's Table 1, with the ranks that the paper prints."""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.accuracy_tables import ALL_DATASETS
from pogm.benchmark.results.published import paper_ranks
from pogm.benchmark.results.ranking import SUMMARIES, Ranking, rankings
from pogm.benchmark.results.selection import TEST_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Row, Table
from pogm.experiments.base import normalize_row_name

NOTE = (
    "Ranks are over datasets. They compare printed accuracies of the rows of the paper that have an accuracy on every "
    "dataset; equal accuracies share the better rank. Lower is better."
)
CONTROLS = (
    "Rows that are not in the paper are controls: they have no rank (X) and do not change the ranks of the others."
)
PAPER = (
    'The columns "Paper" have the ranks that the paper prints: 18 methods on its seven datasets. Its rank of EQRM, '
    "8.99, would be 8.86 by its own accuracies."
)


def with_ranks(averages: Table, ranked: Sequence[str]) -> Table:
    """Add ranks to a table of averages; return it unchanged if there is only one dataset.

    Args:
        averages: Algorithms against datasets, as from `averages_table`.
        ranked: Names of the rows that are ranked among each other. The other rows are controls.

    Returns:
        The table with our ranks. Under test-domain validation, which the paper uses, it also has the paper's ranks.
    """
    if sum(column.per_trial for column in averages.columns) < 2:
        return averages
    ranked_rows = tuple(row for row in averages.rows if row.key in ranked)
    ours = {found.label: found for found in rankings(replace(averages, rows=ranked_rows))}
    with_paper = averages.selection is TEST_DOMAIN
    theirs = {normalize_row_name(name): ranks for name, ranks in paper_ranks().items()} if with_paper else {}
    columns = [_column(f"Rank, {name}", f"rank, {name}") for name in SUMMARIES]
    if with_paper:
        paper = [(f"Paper, {name.removesuffix(' mean')}", f"paper's rank, {name}") for name in SUMMARIES]
        columns += [_column(title, key) for title, key in paper]

    def extended(row: Row) -> Row:
        cells = _our_ranks(ours.get(row.key), "not ranked" if row.key in ranked else "")
        printed = theirs.get(normalize_row_name(row.key), {})
        paper_cells = [Estimate(printed.get(name)) for name in SUMMARIES] if with_paper else []
        return replace(row, cells=(*row.cells, *cells, *paper_cells))

    notes = [NOTE, *([CONTROLS] if len(ranked_rows) < len(averages.rows) else []), *([PAPER] if with_paper else [])]
    return replace(
        averages,
        columns=(*averages.columns, *columns),
        rows=tuple(map(extended, averages.rows)),
        footnotes=(*averages.footnotes, *notes),
    )


def _our_ranks(found: Ranking | None, reason: str) -> list[Estimate]:
    if found is None:
        return [Estimate(reason=reason) for _ in SUMMARIES]
    return [Estimate(value, n=len(found.ranks)) for value in found.summaries().values()]


def _column(title: str, key: str) -> Column:
    return Column(title, best="lowest", ids={"dataset": ALL_DATASETS, "domain": key})
