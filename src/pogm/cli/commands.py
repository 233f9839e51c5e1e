"""What each command of the command line does."""

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json
from pogm.benchmark.catalogue import CATALOGUES
from pogm.benchmark.demo import plan
from pogm.benchmark.domainbed import export_domainbed
from pogm.benchmark.plan.parsing import dataset_of, trial_of
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.comparison import Comparison, compare, comparisons_csv
from pogm.benchmark.results.published import published
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, Selection, oracle_early_stop
from pogm.benchmark.results.tables import Table, averages_table, dataset_table, tables_csv
from pogm.benchmark.runs.directory import (
    STATES,
    TRIAL,
    fact_of,
    load_sweep,
    load_trial,
    place_of,
    save_plan,
    save_sweep,
    status,
)
from pogm.benchmark.runs.estimate import estimates
from pogm.benchmark.runs.executors import Outcome, carry_out, executor, run_all
from pogm.benchmark.runs.progress import EvaluationLines
from pogm.benchmark.runs.runner import Settings, run
from pogm.cli.options import (
    all_done,
    among_others,
    check_alone,
    check_counts,
    chosen,
    prepare,
    settings_of,
    show_estimates,
)
from pogm.data.images.index import reuse_scans
from pogm.diagnostics import Probe
from pogm.experiments import catalogue
from pogm.report.picture import write_picture
from pogm.report.runs import write_report


def demo(options: argparse.Namespace) -> int:
    """Run four methods on two small datasets (about a minute), print tables, write a report."""
    check_counts(options, "seeds", "workers")
    trials = plan(options.seeds)
    if options.dry_run:
        print(
            f"{len(trials)} runs of {trials[0].steps} minibatches on {options.workers} processes, into {options.out}:"
        )
        for trial in trials:
            print(f"  {trial.id}  {trial.dataset.title}  {trial.label}  held out {trial.test_domains[0]}")
        return 0
    save_plan(trials, options.out)
    return _finished(run_all(trials, options.out, Settings(), options.workers), len(trials), options.out)


@reuse_scans()
def run_one(options: argparse.Namespace) -> int:
    """Train one algorithm on one dataset with some domains held out."""
    settings = among_others(options, settings_of(options, [options.dataset]))
    trial = trial_of(
        options.dataset,
        options.algorithm,
        options.test_domain,
        data=settings.data,
        preset=options.preset,
        modifiers=options.modifiers,
        settings=chosen(options),
        steps=options.steps,
        evaluate_every=options.evaluate_every,
        seed=options.seed,
        data_seed=options.data_seed,
        trial_seed=options.trial_seed,
        precision=options.precision,
        probe=Probe.each(options.probe_every),
    )
    if options.dry_run:
        print(canonical_json(trial.to_json()))
        return 0
    launch = settings.launch
    if launch is None or launch.local_rank == 0:  # one on every machine; the others wait for it
        prepare([trial], settings)
    if launch is None or launch.rank == 0:
        where = f"{trial.dataset.title}, trial {trial.id}, into {options.out}"
        count = f", with {launch.world_size} processes" if launch and launch.world_size > 1 else ""
        print(f"{trial.label} on {where}{count}", file=sys.stderr)
    run(trial, options.out, settings, EvaluationLines(trial))
    return 0


def start_sweep(options: argparse.Namespace) -> int:
    """Compare algorithms on datasets: every domain held out, several configurations, several trials."""
    settings = settings_of(options, options.datasets)
    sweep = Sweep(
        algorithms=tuple(options.algorithms),
        datasets=tuple(dataset_of(name, settings.data) for name in options.datasets),
        configurations=options.configurations,
        trials=options.trials,
        mode=options.mode,
        modifiers=tuple(options.modifiers),
        settings=chosen(options),
        steps=options.steps,
        evaluate_every=options.evaluate_every,
        precision=options.precision,
        probe_every=options.probe_every,
    )
    trials = sweep.plan()
    check_counts(options, "workers")
    if options.dry_run:
        at_once = options.workers if settings.engine.torch_device().type == "cpu" else 1
        show_estimates(estimates(trials, settings), len(trials), at_once)
        return 0
    prepare(trials, settings)  # before anything is written
    save_sweep(sweep, options.out)
    return _carry_out(sweep, options.out, settings, options)


def _carry_out(sweep: Sweep, folder: Path, settings: Settings, options: argparse.Namespace) -> int:
    execute = executor(options.executor, options.workers, options.address)
    outcomes = carry_out(sweep.plan(), folder, settings, execute, options.retry_failed)
    return _finished(outcomes, len(sweep.plan()), folder)


def _finished(outcomes: Iterable[Outcome], count: int, folder: Path) -> int:
    """Wait for the runs of a folder, then say what failed and show the rest."""
    done = all_done(outcomes, count, folder)
    runs = read_runs(folder)
    if any(run.done for run in runs):
        _show_tables(runs, "text")
    _write_html(runs, folder)
    return 0 if done else 1


def show_status(options: argparse.Namespace) -> int:
    """Say how many runs of a sweep are done, running, interrupted, failed or waiting."""
    counts = status(load_sweep(options.folder), options.folder)
    total: Counter[str] = Counter()
    for (dataset, label), found in counts.items():
        total += found
        print(f"{dataset}  {label}  {', '.join(f'{found[state]} {state}' for state in STATES if found[state])}")
    print(f"{total.total()} runs: {', '.join(f'{total[state]} {state}' for state in STATES)}")
    return 0


def resume(options: argparse.Namespace) -> int:
    """Go on with a run, or a sweep, that was stopped or killed."""
    options.data = options.data or place_of("data", options.folder)
    options.weights = options.weights or place_of("weights", options.folder)
    if options.trajectories == "auto" and fact_of("trajectories", options.folder) == "bf16":
        options.trajectories = "bf16"  # which rounds: the run goes on as it began
    if fact_of("deterministic", options.folder):
        _continue_deterministic(options)
    if (options.folder / "sweep.json").exists():
        check_alone("a sweep")
        check_counts(options, "workers")
        if options.spread:
            raise UsageError(f"Expected --spread for one run; found the sweep {options.folder}. Leave it out.")
        sweep, settings = load_sweep(options.folder), settings_of(options)
        prepare(sweep.plan(), settings)
        return _carry_out(sweep, options.folder, settings, options)
    trial = load_trial(options.folder)
    settings = among_others(options, settings_of(options))
    if (options.folder / "done").exists() and (settings.launch is None or settings.launch.rank == 0):
        print(f"{options.folder} is done already.", file=sys.stderr)
    run(trial, options.folder, settings, EvaluationLines(trial))
    return 0


def _continue_deterministic(options: argparse.Namespace) -> None:
    """Choose the options that a deterministic run began with, where the user chose none."""
    options.deterministic = True
    if not (options.folder / TRIAL).exists():
        return  # a sweep: every run has its own
    if options.trajectories == "auto":
        options.trajectories = fact_of("trajectories", options.folder) or "auto"
    if options.compile == "auto":
        options.compile = "on" if fact_of("compiled", options.folder) else "off"
    options.no_capture = options.no_capture or not fact_of("captured", options.folder)


def report(options: argparse.Namespace) -> int:
    """Print the tables of finished runs and write the HTML report."""
    runs = read_runs(*options.folders)
    if options.format != "html":
        early = () if options.oracle_early_stop is None else (oracle_early_stop(options.oracle_early_stop),)
        _show_tables(runs, options.format, options.against, early or SELECTIONS)
    if options.format in ("text", "html"):
        _write_html(runs, options.out or options.folders[0], options.against)
    return 0


def export(options: argparse.Namespace) -> int:
    """Write finished runs as a DomainBed sweep, for its collector to read."""
    jobs = export_domainbed(read_runs(*options.folders), options.out)
    print(f"{len(jobs)} job folder{'s' * (len(jobs) > 1)} in {options.out}", file=sys.stderr)
    return 0


def list_things(options: argparse.Namespace) -> int:
    """List algorithms, datasets, modifiers or networks, with defaults and search spaces; or experiments."""
    catalogues = CATALOGUES | {"experiments": catalogue}
    for line in catalogues[options.what]():
        print(line)
    return 0


def _show_tables(
    runs: Sequence[Run], form: str, against: str | None = None, selections: Sequence[Selection] = SELECTIONS
) -> None:
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    tables = [dataset_table(runs, dataset, selection) for dataset in datasets for selection in selections]
    if len(datasets) > 1:
        tables += [averages_table(runs, selection) for selection in selections]
    shown = [table for table in tables if not table.empty]
    if not shown:
        raise UsageError(f"Expected finished runs; found none of {len(runs)}. Resume them first: pogm resume FOLDER")
    beside = compare(runs, published(against)) if against else []
    if against and not beside:
        print(f"pogm: Nothing here to compare with {published(against).title}.", file=sys.stderr)
    everything: list[Table | Comparison] = [*shown, *beside]
    if form == "csv":  # whose lines all have the same columns: either ours, or ours beside theirs
        print(comparisons_csv(beside) if against else tables_csv(shown), end="")
    elif form == "json":
        print("[" + ",\n".join(table.json() for table in everything) + "]")
    else:
        print("\n".join(table.text() if form == "text" else table.latex() for table in everything))
    if form == "text" and LEAVE_ONE_DOMAIN_OUT in selections and all(len(run.test_domains) == 1 for run in runs):
        why = "no table, for it needs runs that hold out two domains. See: pogm sweep --mode full"
        print(f"{LEAVE_ONE_DOMAIN_OUT.title}: {why}")


def _write_html(runs: Sequence[Run], out: Path, against: str | None = None) -> None:
    source = published(against) if against else None
    path = write_report(runs, out, command=shlex.join(["pogm", *sys.argv[1:]]), against=source)
    write_picture(runs, path.with_name("picture.svg"))
    print(f"Report: {path}", file=sys.stderr)
