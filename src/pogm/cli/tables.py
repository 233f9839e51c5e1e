"""Functions shared by commands that print tables and write reports. This module does not import torch."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pogm._system.errors import UsageError
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.comparison import Comparison, compare, comparisons_csv
from pogm.benchmark.results.model_metrics import selected_metrics_table
from pogm.benchmark.results.published import find_publication
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Table
from pogm.benchmark.results.table_formats import tables_csv
from pogm.report.runs import write_picture, write_report


class ResultTables(NamedTuple):
    """Tables of finished runs."""

    accuracies: list[Table]
    metrics: list[Table]  # of the selected models
    compared: list[Comparison]  # with published results

    def to_json(self) -> list[Any]:
        """Return all tables as JSON values."""
        return [table.to_dict() for table in self.all()]

    def all(self) -> list[Table | Comparison]:
        """Return all tables in the order of the text."""
        return [*self.accuracies, *self.metrics, *self.compared]


def find_tables(
    runs: Sequence[Run], against: str | None = None, selections: Sequence[Selection] = SELECTIONS
) -> ResultTables:
    """Return the tables of finished runs: accuracies, metrics of the selected models, and comparisons.

    Args:
        runs: The runs.
        against: Published results to compare with.
        selections: Model selection criteria; one table for each.

    Raises:
        UsageError: If no finished run was evaluated at a held-out domain.
    """
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    tables = [dataset_table(runs, dataset, selection) for dataset in datasets for selection in selections]
    if len(datasets) > 1:
        tables += [averages_table(runs, selection) for selection in selections]
    shown = [table for table in tables if not table.empty]
    if not shown:
        if runs and all(run.done and not run.test_domains for run in runs):
            raise UsageError(
                f"Expected finished runs with a held-out domain, for tables; found {len(runs)} trained on all domains. "
                "Estimate their accuracy on a new domain with runs that hold out one (--test-domain)."
            )
        if not runs:
            raise UsageError("Expected a folder with runs; found no run in it. Start one with: pogm run, or pogm sweep")
        if text := _describe_rivals(runs):
            raise UsageError(
                "Expected runs of one method and one held-out domain with different seeds, or the runs of a sweep; "
                f"found {text}. Report them one by one, or compare them with: pogm board FOLDER"
            )
        if done := sum(run.done for run in runs):
            raise UsageError(
                f"Expected finished runs with accuracies at held-out domains, for tables; found {done} without them. "
                "Results of pogm train are in the card of its model: card.html, card.md."
            )
        raise UsageError(
            f"Expected finished runs; found {len(runs)}, none of them finished. Continue them: pogm resume FOLDER"
        )
    metrics = [selected_metrics_table(runs, dataset) for dataset in datasets] if TRAINING_DOMAIN in selections else []
    compared = compare(runs, find_publication(against)) if against else []
    if against and not compared:
        print_line(f"pogm: Nothing here to compare with {find_publication(against).title}.", file=sys.stderr)
    return ResultTables(shown, [table for table in metrics if table], compared)


def _describe_rivals(runs: Sequence[Run]) -> str:
    """Describe finished runs that would have the same place in a table, and their settings that differ."""
    places: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run.done:
            place = (run.dataset, run.label, run.test_domains, run.trial_seed, run.hparams_seed)
            places.setdefault(place, []).append(run)
    for found in places.values():
        if len(found) > 1:
            settings = [dict(_flatten(run.trial)) for run in found]
            names = sorted({name for one in settings for name in one})
            different = [name for name in names if len({one.get(name) for one in settings}) > 1]
            return f"{len(found)} runs of {found[0].label} on {found[0].dataset} that differ in {', '.join(different)}"
    return ""


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each setting of a trial, such as "algorithm.kappa"."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value)


def show_tables(
    runs: Sequence[Run], form: str, against: str | None = None, selections: Sequence[Selection] = SELECTIONS
) -> None:
    """Print the tables of finished runs as text, csv, json or latex; see `find_tables`.

    CSV has only the accuracies or, with ``against``, only the comparison.
    """
    tables = find_tables(runs, against, selections)
    if form == "csv":  # all lines have the same columns: either our tables, or the comparison
        print(comparisons_csv(tables.compared) if against else tables_csv(tables.accuracies), end="")
    else:
        print_tables(tables.all(), form)
    if form == "text" and LEAVE_ONE_DOMAIN_OUT in selections and all(len(run.test_domains) == 1 for run in runs):
        why = "no table, because it needs runs that hold out two domains. See: pogm sweep --mode full"
        print_line(f"{LEAVE_ONE_DOMAIN_OUT.title}: {why}")


def print_tables(tables: Sequence[Table | Comparison], form: str) -> None:
    """Print tables as text, json or latex."""
    if form == "json":
        print("[" + ",\n".join(table.json() for table in tables) + "]")
    else:
        print("\n".join(table.text() if form == "text" else table.latex() for table in tables))


def write_html(runs: Sequence[Run], out: Path, against: str | None = None) -> Path:
    """Write the HTML report and its picture, and return the path of the report."""
    source = find_publication(against) if against else None
    path = write_report(runs, out, command=shlex.join(["pogm", *sys.argv[1:]]), against=source)
    write_picture(runs, path.with_name("picture.svg"))
    note(f"Report: {path}")
    return path
