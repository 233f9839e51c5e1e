"""Functions shared by commands that run trials: wait for them, then print tables and write the report.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from pogm._system.terminal import print_line
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.record_digest import FAILED
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import index_plan
from pogm.benchmark.runs.executors import Outcome, run_waiting_trials
from pogm.benchmark.runs.progress import show_progress
from pogm.benchmark.runs.runner import RunOptions
from pogm.cli.options import Scheduling
from pogm.cli.tables import show_tables, write_html
from pogm.report.draw import MissingPackageError


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
    execute, is_shared = options.make_executor(), options.executor == "slurm"
    trials = sweep.plan()
    index_plan(trials, folder)
    outcomes = run_waiting_trials(trials, folder, run_options, execute, options.retry_failed, with_running=is_shared)
    return finish(outcomes, len(trials), folder)


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
