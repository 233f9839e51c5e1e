"""The command line: ``pogm demo | run | sweep | status | resume | report | export | list``."""

import argparse
import math
import os
import shlex
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pogm import __version__
from pogm.benchmark.catalogue import CATALOGUES
from pogm.benchmark.comparison import Comparison, compare, comparisons_csv
from pogm.benchmark.demo import plan
from pogm.benchmark.domainbed import export_domainbed
from pogm.benchmark.estimate import Estimate, duration, estimates
from pogm.benchmark.executors import cores, run_all
from pogm.benchmark.folder import load_trial, make_folder
from pogm.benchmark.options import trial_of
from pogm.benchmark.progress import EvaluationLines, silence, tracked
from pogm.benchmark.published import SOURCES, published
from pogm.benchmark.records import read_runs
from pogm.benchmark.report import write_picture, write_report
from pogm.benchmark.run import Settings, run
from pogm.benchmark.selection import SELECTIONS
from pogm.benchmark.sweep import STATES, Sweep, carry_out, load_sweep, save_sweep, status
from pogm.benchmark.tables import Table, averages_table, dataset_table, tables_csv
from pogm.core.errors import DataError, PogmError, UsageError
from pogm.core.files import canonical_json
from pogm.engine.session import Engine

EPILOG = """examples:
  pogm demo                                          four methods on two small datasets, tables and a report
  pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --set kappa=0.1 --out runs/first
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --out runs/sweep
  pogm status runs/sweep                             how many runs are done, running, failed or waiting
  pogm resume runs/first                             go on after a crash or a Ctrl-C
  pogm report runs                                   tables here, and runs/report.html to look at
  pogm export runs --out sweep                       the runs as a DomainBed sweep, for its collector
  pogm list algorithms                               every method with its defaults and search space
"""

SWEEP_EPILOG = """examples:
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --trials 2 --out runs/sweep
  pogm sweep --algorithms ERM Fish Fishr POGM --datasets ColoredMNIST --data ~/data --out runs/cmnist --dry-run
  pogm status runs/sweep
The same command again, or pogm resume, goes on where it stopped.
"""

RUN_EPILOG = """examples:
  pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --out runs/first
  pogm run --dataset ColoredMNIST --data ~/data --algorithm Fishr --set penalty=100 --test-domain=-90% --out runs/second
  pogm run --dataset RotatedDigits --algorithm POGM --preset official --with Mixup --test-domain 0 --out runs/third
The same command again goes on where it stopped, and does nothing once the run is done.
"""

REPORT_EPILOG = """examples:
  pogm report runs/demo
  pogm report runs --format csv > table.csv
  pogm report runs domainbed/sweep                   a DomainBed sweep as it is, beside ours
  pogm report runs --against paper                   the tables of the paper beside ours, with differences
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Errors meant for the user come as one paragraph, without a traceback."""
    warnings.showwarning = _show_warning
    options = parser().parse_args(arguments)
    try:
        code: int | None = options.command(options)
        return code or 0
    except PogmError as error:
        print(f"pogm: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("pogm: stopped. The same command goes on from here.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        silence()
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"pogm: Expected to read and write files; found: {error}. Check that path and its disk.", file=sys.stderr)
        return DataError.exit_code


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser("pogm", description=__doc__, epilog=EPILOG, formatter_class=plain)
    top.add_argument("--version", action="version", version=f"pogm {__version__}")
    commands = top.add_subparsers(required=True, metavar="command")

    def command(name: str, function: Callable[[argparse.Namespace], int | None], epilog: str = "") -> Any:
        summary = (function.__doc__ or "").splitlines()[0]
        sub = commands.add_parser(name, help=summary, description=summary, epilog=epilog, formatter_class=plain)
        sub.set_defaults(command=function)
        return sub

    sub = command("demo", demo, "example:\n  pogm demo --out runs/demo --seeds 3\n")
    sub.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs and the report")
    sub.add_argument("--seeds", type=int, default=3, help="seeds per held-out domain (default 3)")
    sub.add_argument("--workers", type=int, default=cores(), help="processes (default: one per core)")
    sub.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")

    sub = command("run", run_one, RUN_EPILOG)
    sub.add_argument("--dataset", required=True, help="see: pogm list datasets")
    sub.add_argument("--algorithm", required=True, help="see: pogm list algorithms")
    sub.add_argument("--preset", help="a named set of the algorithm's hyperparameters")
    sub.add_argument("--with", dest="modifiers", action="append", default=[], metavar="MODIFIER", help="such as Mixup")
    sub.add_argument("--test-domain", action="append", required=True, help="its name or number; repeat for several")
    sub.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter; may be repeated"
    )
    sub.add_argument("--steps", type=int, help="minibatches of each domain (default: the dataset's)")
    sub.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the dataset's)")
    sub.add_argument("--seed", type=int, default=0, help="of weights, minibatches and all else (default 0)")
    sub.add_argument("--data-seed", type=int, help="of the data's construction (default: the seed)")
    sub.add_argument("--trial-seed", type=int, help="of the train/validation split (default: the seed)")
    sub.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp64 (default fp32); recorded")
    sub.add_argument(
        "--probe-every", type=int, default=0, metavar="ROUNDS", help="measure domain angles (default: not)"
    )
    sub.add_argument("--out", type=Path, required=True, help="folder of the run")
    sub.add_argument("--dry-run", action="store_true", help="print the trial and stop")
    _add_settings(sub)

    sub = command("sweep", start_sweep, SWEEP_EPILOG)
    sub.add_argument("--algorithms", nargs="+", required=True, metavar="NAME", help="see: pogm list algorithms")
    sub.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help="see: pogm list datasets")
    sub.add_argument("--with", dest="modifiers", nargs="+", default=[], metavar="MODIFIER", help="on every algorithm")
    sub.add_argument("--configurations", type=int, default=20, help="of hyperparameters; the first is the defaults")
    sub.add_argument("--trials", type=int, default=3, help="repetitions with other seeds and splits (default 3)")
    sub.add_argument("--mode", default="single", help="single: hold out each domain; full: each pair too")
    sub.add_argument("--steps", type=int, help="minibatches of each domain (default: the dataset's)")
    sub.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the dataset's)")
    sub.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp64 (default fp32); recorded")
    sub.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    sub.add_argument("--dry-run", action="store_true", help="count the runs, measure a few steps, say hours and memory")
    _add_driver(sub)

    sub = command("status", show_status, "example:\n  pogm status runs/sweep\n")
    sub.add_argument("folder", type=Path, help="folder of a sweep")

    sub = command("resume", resume, "examples:\n  pogm resume runs/first\n  pogm resume runs/sweep --retry-failed\n")
    sub.add_argument("folder", type=Path, help="folder of a run, or of a sweep")
    _add_driver(sub)

    sub = command("report", report, REPORT_EPILOG)
    sub.add_argument(
        "folders", type=Path, nargs="+", metavar="folder", help="folders with runs, ours or DomainBed's, at any depth"
    )
    sub.add_argument("--format", choices=("text", "csv", "json", "latex", "html"), default="text")
    sub.add_argument("--out", type=Path, help="where the HTML report goes (default: the first folder)")
    sub.add_argument(
        "--against", choices=tuple(SOURCES), help="published results to put beside ours; as csv, these lines alone"
    )

    sub = command("export", export, "example:\n  pogm export runs --layout domainbed --out runs-for-domainbed\n")
    sub.add_argument("folders", type=Path, nargs="+", metavar="folder", help="folders with runs, at any depth")
    sub.add_argument(
        "--layout", choices=("domainbed",), default="domainbed", help="whose (default and only: DomainBed)"
    )
    sub.add_argument("--out", type=Path, required=True, help="a new folder, one job folder in it for each run")

    sub = command("list", list_things, "example:\n  pogm list algorithms\n")
    sub.add_argument("what", choices=tuple(CATALOGUES))
    return top


def _add_driver(sub: Any) -> None:
    sub.add_argument("--workers", type=int, default=cores(), help="processes of a sweep (default: one per core)")
    sub.add_argument("--retry-failed", action="store_true", help="run those trials of a sweep again that failed")
    _add_settings(sub)


def _add_settings(sub: Any) -> None:
    sub.add_argument("--data", type=Path, default=os.environ.get("POGM_DATA"), help="data folder (default: $POGM_DATA)")
    sub.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    sub.add_argument("--no-capture", action="store_true", help="on a GPU, do not record the step as a CUDA graph")
    sub.add_argument("--threads", type=int, default=1, help="of a CPU (default 1, so that results do not depend on it)")
    sub.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, help="at least, between checkpoints (default 30)"
    )


def demo(options: argparse.Namespace) -> int:
    """Run four methods on two small datasets (about a minute), print tables, write a report."""
    for name in ("seeds", "workers"):
        if getattr(options, name) < 1:
            raise UsageError(f"Expected --{name} of at least 1; found {getattr(options, name)}. Leave it out.")
    trials = plan(options.seeds)
    if options.dry_run:
        print(
            f"{len(trials)} runs of {trials[0].steps} minibatches on {options.workers} processes, into {options.out}:"
        )
        for trial in trials:
            print(f"  {trial.id}  {trial.dataset}  {trial.label}  held out {trial.test_domains[0]}")
        return 0
    make_folder(options.out)
    outcomes = run_all(trials, options.out, Settings(), options.workers)
    failed = [o for o in tracked(outcomes, len(trials), "runs") if o.error is not None]
    for outcome in failed:
        print(f"pogm: {outcome.trial.label} on {outcome.trial.dataset} failed: {outcome.error}", file=sys.stderr)
    _show_tables([options.out], "text")
    _write_html([options.out], options.out)
    return 1 if failed else 0


def run_one(options: argparse.Namespace) -> int:
    """Train one algorithm on one dataset with some domains held out."""
    trial = trial_of(
        options.dataset,
        options.algorithm,
        options.test_domain,
        preset=options.preset,
        modifiers=options.modifiers,
        settings=options.set,
        steps=options.steps,
        evaluate_every=options.evaluate_every,
        seed=options.seed,
        data_seed=options.data_seed,
        trial_seed=options.trial_seed,
        precision=options.precision,
        probe_every=options.probe_every,
    )
    settings = _settings(options)
    if options.dry_run:
        print(canonical_json(trial.to_json()))
        return 0
    print(f"{trial.label} on {trial.dataset}, trial {trial.id}, into {options.out}", file=sys.stderr)
    run(trial, options.out, settings, EvaluationLines(trial))
    return 0


def start_sweep(options: argparse.Namespace) -> int:
    """Compare algorithms on datasets: every domain held out, several configurations, several trials."""
    sweep = Sweep(
        algorithms=tuple(options.algorithms),
        datasets=tuple(options.datasets),
        configurations=options.configurations,
        trials=options.trials,
        mode=options.mode,
        modifiers=tuple(options.modifiers),
        steps=options.steps,
        evaluate_every=options.evaluate_every,
        precision=options.precision,
    )
    settings = _settings(options)
    trials = sweep.plan()
    if options.dry_run:
        _show_estimates(estimates(trials, settings), len(trials), options.workers)
        return 0
    save_sweep(sweep, options.out)
    return _carry_out(sweep, options.out, settings, options)


def _show_estimates(kinds: Sequence[Estimate], runs: int, workers: int) -> None:
    for kind in kinds:
        print(f"{kind.dataset}  {kind.label}  {kind.runs} runs  {duration(kind.seconds)}  {kind.memory_gb:.1f} GB each")
    total = duration(sum(kind.seconds for kind in kinds) / workers)
    print(f"{runs} runs, about {total} on {workers} processes.")


def _carry_out(sweep: Sweep, folder: Path, settings: Settings, options: argparse.Namespace) -> int:
    if options.workers < 1:
        raise UsageError(f"Expected --workers of at least 1; found {options.workers}. Leave it out.")
    outcomes = carry_out(sweep, folder, settings, options.workers, options.retry_failed)
    failed = [o for o in tracked(outcomes, len(sweep.plan()), "runs") if o.error is not None]
    for outcome in failed:
        print(f"pogm: {folder / outcome.trial.id}: {outcome.trial.label} failed: {outcome.error}", file=sys.stderr)
    _show_tables([folder], "text")
    _write_html([folder], folder)
    return 1 if failed else 0


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
    if (options.folder / "sweep.json").exists():
        return _carry_out(load_sweep(options.folder), options.folder, _settings(options), options)
    trial = load_trial(options.folder)
    if (options.folder / "done").exists():
        print(f"{options.folder} is done already.", file=sys.stderr)
    run(trial, options.folder, _settings(options), EvaluationLines(trial))
    return 0


def report(options: argparse.Namespace) -> int:
    """Print the tables of finished runs and write the HTML report."""
    if options.format != "html":
        _show_tables(options.folders, options.format, options.against)
    if options.format in ("text", "html"):
        _write_html(options.folders, options.out or options.folders[0], options.against)
    return 0


def export(options: argparse.Namespace) -> int:
    """Write finished runs as a DomainBed sweep, for its collector to read."""
    jobs = export_domainbed(read_runs(*options.folders), options.out)
    print(f"{len(jobs)} job folder{'s' * (len(jobs) > 1)} in {options.out}", file=sys.stderr)
    return 0


def list_things(options: argparse.Namespace) -> int:
    """List algorithms, datasets, modifiers or networks, with defaults and search spaces."""
    for line in CATALOGUES[options.what]():
        print(line)
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    if options.threads < 1:
        raise UsageError(f"Expected --threads of at least 1; found {options.threads}. Leave it out.")
    if not 0 <= options.checkpoint_seconds < math.inf:
        raise UsageError(
            f"Expected --checkpoint-seconds of at least 0; found {options.checkpoint_seconds}. Leave it out."
        )
    engine = Engine(device=options.device, capture=not options.no_capture)
    data = options.data.expanduser() if options.data else None
    return Settings(data, engine, options.threads, options.checkpoint_seconds)


def _show_tables(folders: Sequence[Path], form: str, against: str | None = None) -> None:
    runs = read_runs(*folders)
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    tables = [dataset_table(runs, dataset, selection) for dataset in datasets for selection in SELECTIONS]
    if len(datasets) > 1:
        tables += [averages_table(runs, selection) for selection in SELECTIONS]
    shown = [table for table in tables if not table.empty]
    if not shown:
        raise UsageError(f"Expected finished runs in {', '.join(map(str, folders))}; found none. Resume them first.")
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


def _write_html(folders: Sequence[Path], out: Path, against: str | None = None) -> None:
    runs = read_runs(*folders)
    source = published(against) if against else None
    path = write_report(runs, out, command=shlex.join(["pogm", *sys.argv[1:]]), against=source)
    write_picture(runs, path.with_name("picture.svg"))
    print(f"Report: {path}", file=sys.stderr)


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    print(f"pogm: {category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
