"""Functions shared by commands that run trials: wait for them, then print tables and write the report.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pogm._system.messages import log, note, suggest
from pogm._system.terminal import print_line
from pogm._system.unexpected import find_position_in_text
from pogm.benchmark.executors.outcomes import Outcome
from pogm.benchmark.executors.waiting_trials import run_waiting_trials
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.sweep_progress import track_sweep
from pogm.benchmark.results.finding import best_runs
from pogm.benchmark.results.record_digest import FAILED
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.runs.runner import RunOptions
from pogm.benchmark.runs.selected_model import MODEL
from pogm.benchmark.runs.sweep_directory import index_plan
from pogm.cli.json_output import Output
from pogm.cli.options import Scheduling
from pogm.cli.single_run import model_commands
from pogm.cli.tables import find_tables, show_tables, write_html
from pogm.report.draw import MissingPackageError


def wait_for_all(outcomes: Iterable[Outcome], trials: Sequence[Trial], folder: Path) -> bool:
    """Wait for the runs of a folder, with their progress; print the failures; return True if there are none."""
    return not print_failures(track_sweep(outcomes, trials, folder), folder)


def print_failures(outcomes: Iterable[Outcome], folder: Path) -> list[Outcome]:
    """Wait for runs, print the failures, and return them. Runs of one kind with the same message are printed once."""
    failed = []
    for outcome in outcomes:
        state = "failed" if outcome.error is not None else "done" if outcome.ran else "done before"
        log.info("%s: %s on %s, %s", folder / outcome.trial.id, outcome.trial.label, outcome.trial.dataset.title, state)
        if outcome.error is not None:
            failed.append(outcome)
    alike: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in failed:
        what = f"{outcome.trial.label} on {outcome.trial.dataset.title}"
        alike.setdefault((what, (outcome.error or "").rstrip().rpartition("\n")[2]), []).append(outcome)
    for (what, _), (outcome, *rest) in alike.items():
        path = folder / outcome.trial.id
        first, *others = _summarise(outcome.error or "", path / FAILED).splitlines()
        print_line(f"pogm: {path}: {what} failed: {first}", file=sys.stderr)
        if rest:
            others.append(f"Other runs of {what} with the same message: {len(rest)}.")
        for line in others:
            print_line(f"  {line}", file=sys.stderr)
    return failed


def _summarise(error: str, file: Path) -> str:
    """Return the message of a failure. A traceback, which an unexpected error has, stays in the file."""
    if not error.startswith("Traceback"):
        return error or "no reason is known"
    found = f"an unexpected error{find_position_in_text(error)}: {error.splitlines()[-1]}"
    return f"Expected to finish; found {found}. The traceback is in {file}"


def run_scheduled(
    trials: Sequence[Trial], folder: Path, run_options: RunOptions, options: Scheduling
) -> Iterator[Outcome]:
    """Return the outcomes of the trials of a folder, which run while they are iterated over."""
    execute, is_shared = options.make_executor(), options.executor == "slurm"
    return run_waiting_trials(trials, folder, run_options, execute, options.retry_failed, with_running=is_shared)


def run_sweep(
    sweep: Sweep, folder: Path, run_options: RunOptions, options: Scheduling, command: str, output: Output
) -> int:
    """Run what is left of a sweep, print the tables, write the report, and return the exit code."""
    trials = sweep.plan()
    outcomes = run_scheduled(trials, folder, run_options, options)  # checks the options before anything is written
    index_plan(trials, folder)
    return finish(outcomes, trials, folder, command, output)


def finish(outcomes: Iterable[Outcome], trials: Sequence[Trial], folder: Path, command: str, output: Output) -> int:
    """Wait for the runs of a folder, print the tables, write the report, and return the exit code."""
    failed = print_failures(track_sweep(outcomes, trials, folder), folder)
    runs = read_runs(folder)
    any_done, report = any(run.done for run in runs), None
    if any_done and not output.replaces_text:
        show_tables(runs, "text")
    try:
        report = write_html(runs, folder)
    except MissingPackageError as error:
        print_line(f"pogm: The report was not written. {error}", file=sys.stderr)
    lines, commands = _summarise_sweep(runs, folder, trials)
    for line in lines:
        note(line)
    suggest(commands)
    if output.json is not None:
        failures = [
            {
                "folder": folder / one.trial.id,
                "label": one.trial.label,
                "dataset": one.trial.dataset.title,
                "error": _summarise(one.error or "", folder / one.trial.id / FAILED),
            }
            for one in failed
        ]
        tables = find_tables(runs).to_json() if any_done else []
        document = {"folder": folder, "runs": len(trials), "failed": failures, "tables": tables, "report": report}
        output.show(command, document)
    return 1 if failed else 0


def _summarise_sweep(runs: Sequence[Run], folder: Path, trials: Sequence[Trial]) -> tuple[list[str], list[str]]:
    """Return lines with the best method of each dataset and one of its runs, and commands to continue with."""
    by_id, lines, commands = {run.id: run for run in runs}, [], []
    for choice in best_runs(runs):
        run = by_id[choice.run or ""]
        score = "R² {:.3f}" if run.task == "regression" else "{:.1%}"
        test, validation = score.format(choice.accuracy), score.format(choice.validation)
        held_out = f"held out {run.domains[choice.domain]} ({test} there)"
        lines.append(
            f"{choice.dataset}: {choice.label} has the best mean over held-out domains. Its run with the best "
            f"validation ({validation}) is {run.folder}: step {choice.step}, {held_out}"
        )
        alike = [trial for trial in trials if trial.id == run.id]  # none for a combination of runs
        alike += [trial for trial in trials if trial.dataset.title == run.dataset]
        for trial in alike[:1] if (run.folder / MODEL).exists() else ():
            commands += model_commands(trial, run.folder)[-1:]
    if lines:
        commands.insert(0, f"pogm report {shlex.quote(str(folder))}")
    return lines, commands
