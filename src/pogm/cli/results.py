"""Functions shared by commands with results: wait for runs, print tables, write the report.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pogm._system.errors import UsageError
from pogm._system.terminal import print_line
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.comparison import Comparison, compare, comparisons_csv
from pogm.benchmark.results.model_metrics import selected_metrics_table
from pogm.benchmark.results.published import find_publication
from pogm.benchmark.results.records import FAILED, Run, read_runs
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Table
from pogm.benchmark.results.table_formats import tables_csv
from pogm.benchmark.runs.directory import index_plan
from pogm.benchmark.runs.executors import Outcome, executor, run_waiting_trials
from pogm.benchmark.runs.progress import show_progress
from pogm.benchmark.runs.runner import RunOptions
from pogm.cli.options import Scheduling
from pogm.report.draw import MissingPackageError
from pogm.report.runs import write_picture, write_report


def wait_for_all(outcomes: Iterable[Outcome], count: int, folder: Path) -> bool:
    """Wait for the runs of a folder, with a progress bar; print the failures; return True if there are none."""
    return not print_failures(show_progress(outcomes, count, "runs"), folder)


def print_failures(outcomes: Iterable[Outcome], folder: Path) -> bool:
    """Wait for runs and print the failures; return True if there are some."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        where = f"{folder / outcome.trial.id}: {outcome.trial.label} on {outcome.trial.dataset.title}"
        first, *others = _summarise(outcome.error or "", folder / outcome.trial.id / FAILED).splitlines()
        print_line(f"pogm: {where} failed: {first}", file=sys.stderr)
        for line in others:
            print_line(f"  {line}", file=sys.stderr)
    return bool(failed)


def _summarise(error: str, file: Path) -> str:
    """Return the message of a failure. A traceback, which an unexpected error has, stays in the file."""
    if not error.startswith("Traceback"):
        return error or "no reason is known"
    return f"Expected to finish; found an unexpected error: {error.splitlines()[-1]}. The traceback is in {file}"


def run_sweep(sweep: Sweep, folder: Path, run_options: RunOptions, options: Scheduling) -> int:
    """Run what is left of a sweep, print the tables, write the report, and return the exit code."""
    execute = executor(options.executor, options.workers, options.address)
    trials = sweep.plan()
    index_plan(trials, folder)
    return finish(run_waiting_trials(trials, folder, run_options, execute, options.retry_failed), len(trials), folder)


def finish(outcomes: Iterable[Outcome], count: int, folder: Path) -> int:
    """Wait for the runs of a folder, print the tables, write the report, and return the exit code."""
    done = wait_for_all(outcomes, count, folder)
    runs = read_runs(folder)
    if any(run.done for run in runs):
        show_tables(runs, "text")
    try:
        write_html(runs, folder)
    except MissingPackageError as error:
        print_line(f"pogm: The report was not written. {error}", file=sys.stderr)
    return 0 if done else 1


def show_tables(
    runs: Sequence[Run], form: str, against: str | None = None, selections: Sequence[Selection] = SELECTIONS
) -> None:
    """Print the tables of finished runs: accuracies and, except as CSV, metrics of the selected models.

    Args:
        runs: The runs.
        form: text, csv, json or latex.
        against: Published results to compare with.
        selections: Model selection criteria; one table for each.

    Raises:
        UsageError: If no run is finished.
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
        raise UsageError(f"Expected finished runs; found none of {len(runs)}. Resume them first: pogm resume FOLDER")
    metrics = [selected_metrics_table(runs, dataset) for dataset in datasets] if TRAINING_DOMAIN in selections else []
    compared = compare(runs, find_publication(against)) if against else []
    if against and not compared:
        print_line(f"pogm: Nothing here to compare with {find_publication(against).title}.", file=sys.stderr)
    everything: list[Table | Comparison] = [*shown, *filter(None, metrics), *compared]
    if form == "csv":  # all lines have the same columns: either our tables, or the comparison
        print(comparisons_csv(compared) if against else tables_csv(shown), end="")
    elif form == "json":
        print("[" + ",\n".join(table.json() for table in everything) + "]")
    else:
        print("\n".join(table.text() if form == "text" else table.latex() for table in everything))
    if form == "text" and LEAVE_ONE_DOMAIN_OUT in selections and all(len(run.test_domains) == 1 for run in runs):
        why = "no table, because it needs runs that hold out two domains. See: pogm sweep --mode full"
        print_line(f"{LEAVE_ONE_DOMAIN_OUT.title}: {why}")


def write_html(runs: Sequence[Run], out: Path, against: str | None = None) -> None:
    """Write the HTML report and its picture."""
    source = find_publication(against) if against else None
    path = write_report(runs, out, command=shlex.join(["pogm", *sys.argv[1:]]), against=source)
    write_picture(runs, path.with_name("picture.svg"))
    print_line(f"Report: {path}", file=sys.stderr)
