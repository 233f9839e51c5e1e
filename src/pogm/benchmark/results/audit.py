"""Audit of published tables: arithmetic, copied rows, values that contradict the stated rule, and marks.

Every finding has the numbers that it follows from. Comparisons take the rounding of the printed numbers into account.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pogm.benchmark.results.audit_tables import PublishedTable, Row, Value
from pogm.benchmark.results.ranking import SUMMARIES, competition_ranks

COPIED = 3  # equal cells, with standard errors, from which on two rows are the same
SIGMAS = 2.0  # standard errors of a difference that count as beyond the noise
CHECKS = {
    "mean": "The printed average is not the mean of the printed values.",
    "rank": "The printed rank is not that of the printed values.",
    "mark": "A printed mark is wrong or missing.",
    "noise": "The best value is marked, but its lead is within the noise.",
    "copy": "The row equals a published row of another method or setting.",
    "column": "The values of a column are those of another dataset.",
    "rule": "The values contradict the stated selection rule or search.",
    "same": "The row equals a published row of the same method, and no other selection rule is stated.",
    "differs": "Another publication has other values for the same method under the same rule.",
}
NOTES = ("same", "differs")  # remarks, not errors


@dataclass(frozen=True)
class Finding:
    """One finding in a table."""

    check: str  # a key of `CHECKS`
    table: str
    where: str  # row, and column if there is one
    text: str  # what was found, with the arithmetic

    @property
    def is_note(self) -> bool:
        """True if the finding is only a remark."""
        return self.check in NOTES


def audit(
    tables: Sequence[PublishedTable], references: Sequence[PublishedTable] = (), baseline: str = "ERM"
) -> list[Finding]:
    """Return the findings of all checks, table by table.

    Args:
        tables: The tables to check. They are also compared with each other.
        references: Tables that rows may be copied from.
        baseline: Row that the mark "below_erm" compares with.
    """
    found: list[Finding] = []
    for table in tables:
        found += _check_means(table)
        found += _check_ranks(table)
        found += _check_marks(table, baseline)
        found += _check_copies(table, references)
        found += _check_differences(table, references)
        found += _check_columns(table, [other for other in tables if other is not table])
    return [*found, *_check_selections(tables), *_check_searches(tables)]


def spread(text: str) -> float:
    """Return half a unit of the last printed digit: the rounding error of a number."""
    return 0.5 / float(10 ** len(text.partition(".")[2]))


def _check_means(table: PublishedTable) -> Iterator[Finding]:
    for row in table.rows:
        if not row.mean or len(row.cells) < len(table.datasets):
            continue
        mean = fmean(float(value.mean) for value in row.cells.values())
        allowed = spread(row.mean) + fmean(spread(value.mean) for value in row.cells.values())
        if abs(mean - float(row.mean)) > allowed + 1e-9:
            terms = " + ".join(value.mean for value in row.cells.values())
            text = f"printed {row.mean}; ({terms}) / {len(row.cells)} = {mean:.2f}"
            yield Finding("mean", table.title, row.method, text)


def _check_ranks(table: PublishedTable) -> Iterator[Finding]:
    complete = [row for row in table.rows if len(row.cells) == len(table.datasets)]
    if not any(row.ranks for row in complete):
        return
    columns = [competition_ranks([float(row.cells[d].mean) for row in complete]) for d in table.datasets]
    for number, row in enumerate(complete):
        ranks = [column[number] for column in columns]
        for name, printed in row.ranks.items():
            value = float(SUMMARIES[name](ranks))
            if abs(value - float(printed)) > spread(printed) + 1e-9:
                listed = ", ".join(map(str, ranks))
                text = f"printed {printed}; ranks {listed}: {name} {value:.2f}"
                yield Finding("rank", table.title, row.method, text)


def _check_marks(table: PublishedTable, baseline: str) -> Iterator[Finding]:
    """Check marks, if the table has some of the kind: the best, the second, and values below the baseline."""
    kinds = {mark for row in table.rows for mark in row.marks.values()}
    for dataset in table.datasets:
        shown = [row for row in table.rows if dataset in row.cells]
        values = sorted({float(row.cells[dataset].mean) for row in shown}, reverse=True)
        reference = next((float(row.cells[dataset].mean) for row in shown if row.method == baseline), None)
        for row in shown:
            cell, mark = row.cells[dataset], row.marks.get(dataset, "")
            mean, where = float(cell.mean), f"{row.method}, {dataset}"
            place = values.index(mean)
            for kind, wanted, why in (
                ("best", place == 0, f"number of different higher values: {place}"),
                ("second", place == 1, f"number of different higher values: {place}"),
                ("below_erm", reference is not None and mean < reference, f"{baseline} has {reference}"),
            ):
                if kind in kinds and wanted != (mark == kind):
                    problem = "is not marked" if wanted else "is marked"
                    yield Finding("mark", table.title, where, f"{cell} {problem} as {kind}; {why}")
            if mark == "best" and place == 0:
                yield from _check_noise(table, dataset, row, shown)


def _check_noise(table: PublishedTable, dataset: str, best: Row, shown: Sequence[Row]) -> Iterator[Finding]:
    others = [row for row in shown if row is not best]
    if not others:
        return
    next_best = max(others, key=lambda row: float(row.cells[dataset].mean))
    cell, other = best.cells[dataset], next_best.cells[dataset]
    if not (cell.stderr and other.stderr):
        return
    lead = float(cell.mean) - float(other.mean)
    error = math.hypot(float(cell.stderr), float(other.stderr))
    if lead < SIGMAS * error:
        text = (
            f"{cell} is marked as best; {next_best.method} has {other}. The lead is {lead:.1f}, which is "
            f"{lead / error:.1f} standard errors: √({cell.stderr}² + {other.stderr}²) = {error:.2f}"
        )
        yield Finding("noise", table.title, f"{best.method}, {dataset}", text)


def _equal(printed: Value, reference: Value) -> bool:
    """Return True if a printed value is the reference, rounded to the printed digits, with a standard error."""
    return bool(printed.stderr and reference.stderr) and all(
        abs(float(a) - float(b)) <= max(0.0, spread(a) - spread(b)) + 1e-9
        for a, b in zip(printed, reference, strict=True)
    )


def _check_copies(table: PublishedTable, references: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Find the published row with the most equal cells, for each row."""
    for row in table.rows:
        best: tuple[int, bool, PublishedTable, Row, list[str]] | None = None
        for reference in references:
            for other in reference.rows:
                equal = [d for d in row.cells if d in other.cells and _equal(row.cells[d], other.cells[d])]
                same = other.method == row.method and reference.selection in ("", table.selection)
                if len(equal) >= COPIED and (best is None or (len(equal), same) > best[:2]):
                    best = len(equal), same, reference, other, equal
        if best is None:
            continue
        count, _, reference, other, equal = best
        is_related = row.method == other.method or row.method.startswith(f"{other.method}, ")
        same = is_related and (not table.selection or reference.selection in ("", table.selection))
        rule = f" ({reference.selection})" if reference.selection else ""
        listed = ", ".join(f"{dataset} {row.cells[dataset]}" for dataset in equal)
        text = f"{count} of {len(row.cells)} values equal {other.method}{rule} of {reference.title}: {listed}"
        if is_related and not same:
            text += f"; the stated rule is {table.selection}"
        check = "same" if same else "rule" if is_related else "copy"
        yield Finding(check, table.title, row.method, text)


def _check_differences(table: PublishedTable, references: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Find rows with other values than a publication has for the same method under the same rule."""
    for reference in references:
        for row in table.rows if table.selection and reference.selection == table.selection else ():
            twin = next((other for other in reference.rows if other.method == row.method), None)
            shared = [dataset for dataset in row.cells if twin and dataset in twin.cells]
            unlike = [
                f"{dataset} {row.cells[dataset]} against {twin.cells[dataset]}"
                for dataset in shared
                if twin and _lead(row.cells[dataset], twin.cells[dataset]) > SIGMAS
            ]
            if unlike:
                ours, theirs = (fmean(float(one.cells[d].mean) for d in shared) for one in (row, twin) if one)
                text = (
                    f"{len(unlike)} of {len(shared)} values are more than {SIGMAS:g} standard errors from "
                    f"{reference.title} ({reference.selection}): {', '.join(unlike)}; means {ours:.1f} and {theirs:.1f}"
                )
                yield Finding("differs", table.title, row.method, text)


def _lead(value: Value, other: Value) -> float:
    """Return the absolute difference in standard errors; 0 if there is no standard error."""
    error = math.hypot(float(value.stderr or 0), float(other.stderr or 0))
    return abs(float(value.mean) - float(other.mean)) / error if error else 0.0


def _check_columns(table: PublishedTable, others: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Find values that the same row has for another dataset in another table."""
    for other in (one for one in others if one.selection == table.selection):
        for row in table.rows:
            twin = next((candidate for candidate in other.rows if candidate.method == row.method), None)
            if twin is None:
                continue
            for dataset, cell in row.cells.items():
                if dataset not in twin.cells or twin.cells[dataset] == cell:
                    continue
                for name, value in twin.cells.items():
                    if name not in row.cells and value == cell:
                        there = twin.cells[dataset]
                        text = f"{cell} is the value of {name} in {other.title}, where {dataset} has {there}"
                        yield Finding("column", table.title, f"{row.method}, {dataset}", text)


def _check_selections(tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Find datasets on which two selection rules give the same values in at least half of the rows."""
    for number, table in enumerate(tables):
        for other in tables[number + 1 :]:
            twins = [(a, b) for a in table.rows for b in other.rows if a.method == b.method]
            if table.selection == other.selection or len(twins) < 2 or not (table.selection and other.selection):
                continue
            for dataset in table.datasets:
                equal = [a.method for a, b in twins if a.cells.get(dataset) == b.cells.get(dataset) is not None]
                if len(equal) * 2 >= len(twins) and len(equal) > 1:
                    text = (
                        f"{len(equal)} of {len(twins)} rows have the same value under {table.selection} and "
                        f"{other.selection} ({'; '.join(equal)}). With many configurations, two rules usually select "
                        "different runs"
                    )
                    yield Finding("rule", f"{table.title}; {other.title}", dataset, text)


def _check_searches(tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Find rows above all parts of their search: "POGM, kappa = 0.5" is a part of the search of "POGM".

    The selected run of a search is also the selected run of one part. So the mean of the whole search can exceed the
    best part only as far as different parts are chosen in different trials and domains.
    """
    for table in tables:
        for row in table.rows:
            parts = [
                (other.title, part)
                for other in tables
                if other.selection == table.selection
                for part in other.rows
                if part.method.startswith(f"{row.method}, ")
            ]
            for dataset, cell in row.cells.items():
                known = [(title, part, part.cells[dataset]) for title, part in parts if dataset in part.cells]
                if not known or not cell.stderr:
                    continue
                title, part, best = max(known, key=lambda item: float(item[2].mean))
                error = math.hypot(float(cell.stderr), float(best.stderr or 0))
                lead = float(cell.mean) - float(best.mean)
                if error and lead > SIGMAS * error:
                    text = (
                        f"{cell}; the best of {len(known)} parts of this search is {part.method} with {best} "
                        f"({title}). The difference is {lead:.1f}, {lead / error:.1f} standard errors"
                    )
                    yield Finding("rule", table.title, f"{row.method}, {dataset}", text)
