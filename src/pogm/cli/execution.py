"""Functions that several commands share: settings from options, preparation, plans, estimates, tables.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pogm._system.errors import UsageError
from pogm.benchmark.plan.parsing import data_folder
from pogm.benchmark.plan.sweep import Sweep, carry_out
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.comparison import Comparison, compare, comparisons_csv
from pogm.benchmark.results.published import published
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, Selection
from pogm.benchmark.results.tables import Table, averages_table, dataset_table, tables_csv
from pogm.benchmark.runs.executors import executor
from pogm.benchmark.runs.local import Outcome
from pogm.benchmark.runs.progress import tracked
from pogm.benchmark.runs.runner import Settings
from pogm.cli.options import Distributed, Execution, Scheduling
from pogm.cli.options import Settings as SettingOptions
from pogm.core.hyperparameters import fields
from pogm.distributed.world import Launch
from pogm.engine.session import Engine
from pogm.models import build_features
from pogm.models.weights import RANDOM, weights_of
from pogm.report.picture import write_picture
from pogm.report.runs import write_report


def settings_of(options: Execution, datasets: Sequence[str] = ()) -> Settings:
    """Return validated settings of the runner.

    Args:
        options: Options of the command line.
        datasets: Datasets of the command line. One given as a path determines the data folder.

    Raises:
        UsageError: If a value is out of range, or the datasets are not in one folder.
    """
    device = options.device
    if device.threads < 1:
        raise UsageError(f"Expected --threads of at least 1; found {device.threads}. Leave it out.")
    if not 0 <= options.checkpoint_seconds < math.inf:
        raise UsageError(
            f"Expected --checkpoint-seconds of at least 0; found {options.checkpoint_seconds}. Leave it out."
        )
    engine = Engine(
        device=device.device,
        capture=not device.no_capture,
        compile=device.compile,
        trajectories=device.trajectories,
        memory_gb=device.memory_gb,
        deterministic=device.deterministic,
    )
    data = data_folder(datasets, options.data.data.expanduser() if options.data.data else None)
    weights = options.weights.resolve() if options.weights else None
    trackers = tuple(dict.fromkeys(options.track))
    return Settings(data, engine, device.threads, options.checkpoint_seconds, weights, trackers)


def add_launch(settings: Settings, options: Distributed) -> Settings:
    """Return the settings of this process under torchrun; without torchrun, the settings as they are."""
    launch = Launch.found(options.timeout_seconds, options.spread or "auto")
    if launch is None:
        if options.spread:
            raise UsageError(
                f"Expected torchrun to start the processes for --spread {options.spread}; found this one alone. "
                "Write: torchrun --nproc-per-node 4 -m pogm run ..."
            )
        return settings
    engine = settings.engine
    if engine.place().type == "cuda":
        if ":" in engine.device and launch.world > 1:
            raise UsageError(f"Expected a GPU for each process; found --device {engine.device} for all. Pass cuda.")
        engine = replace(engine, device=f"cuda:{launch.local}")
    return replace(settings, engine=engine, launch=launch)


def setting_texts(options: SettingOptions, weights: Path | None) -> tuple[str, ...]:
    """Return --set, --on-bad-image and --weights as texts like "kappa=0.1"."""
    texts = list(options.settings)
    if options.on_bad_image:
        texts.append(f"on_bad_image={options.on_bad_image}")
    if weights:
        texts.append(f"weights={weights_of(weights)}")
    return tuple(texts)


def check_single_process(what: str) -> None:
    """Raise an error if torchrun has started several processes."""
    launch = Launch.found()
    if launch is not None and launch.world > 1:
        raise UsageError(
            f"Expected pogm run or the resume of one run under torchrun, which train one model; found {what} and "
            f"{launch.world} processes. Start it without torchrun."
        )


def check_counts(**counts: int) -> None:
    """Raise an error for an option that counts something and is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"Expected --{name} of at least 1; found {count}. Leave it out.")


def prepare(trials: Sequence[Trial], settings: Settings) -> None:
    """Write the image caches of all datasets, with a progress bar, before several processes need them."""
    for dataset in {trial.dataset for trial in trials}:
        dataset.prepare(settings.data, partial(tracked, what="images"))


def warn_late_schedules(trial: Trial) -> None:
    """Warn about a penalty whose schedule begins after the last minibatch of the run."""
    name = type(trial.algorithm).__name__
    for field in fields(trial.algorithm):
        if field.name.endswith("anneal_iters") and getattr(trial.algorithm, field.name) >= trial.steps:
            print(
                f"pogm: {name}.{field.name} is {getattr(trial.algorithm, field.name)}, and the run has {trial.steps} "
                f"minibatches: its penalty never gets its weight. For example: --set {name}.{field.name}="
                f"{trial.steps // 3}",
                file=sys.stderr,
            )


def check_weights_exist(trials: Iterable[Trial], settings: Settings) -> None:
    """Read the pretrained weights of every network once, so that a missing or unfit file fails before the first run."""
    settings.enter()
    for network, weights in dict.fromkeys((t.training.network, t.training.weights) for t in trials):
        if weights != RANDOM:
            build_features(network, (3, 224, 224), weights=weights)


def wait_for_all(outcomes: Iterable[Outcome], count: int, folder: Path) -> bool:
    """Wait for the runs of a folder, with a progress bar; print the failures; return True if there are none."""
    failed = [outcome for outcome in tracked(outcomes, count, "runs") if outcome.error is not None]
    for outcome in failed:
        where = f"{folder / outcome.trial.id}: {outcome.trial.label} on {outcome.trial.dataset.title}"
        print(f"pogm: {where} failed: {outcome.error}", file=sys.stderr)
    return not failed


def run_sweep(sweep: Sweep, folder: Path, settings: Settings, options: Scheduling) -> int:
    """Run what is left of a sweep, print the tables, write the report, and return the exit code."""
    execute = executor(options.executor, options.workers, options.address)
    trials = sweep.plan()
    return finish(carry_out(trials, folder, settings, execute, options.retry_failed), len(trials), folder)


def finish(outcomes: Iterable[Outcome], count: int, folder: Path) -> int:
    """Wait for the runs of a folder, print the tables, write the report, and return the exit code."""
    done = wait_for_all(outcomes, count, folder)
    runs = read_runs(folder)
    if any(run.done for run in runs):
        show_tables(runs, "text")
    write_html(runs, folder)
    return 0 if done else 1


def show_tables(
    runs: Sequence[Run], form: str, against: str | None = None, selections: Sequence[Selection] = SELECTIONS
) -> None:
    """Print the tables of finished runs.

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
        raise UsageError(f"Expected finished runs; found none of {len(runs)}. Resume them first: pogm resume FOLDER")
    compared = compare(runs, published(against)) if against else []
    if against and not compared:
        print(f"pogm: Nothing here to compare with {published(against).title}.", file=sys.stderr)
    everything: list[Table | Comparison] = [*shown, *compared]
    if form == "csv":  # all lines have the same columns: either our tables, or the comparison
        print(comparisons_csv(compared) if against else tables_csv(shown), end="")
    elif form == "json":
        print("[" + ",\n".join(table.json() for table in everything) + "]")
    else:
        print("\n".join(table.text() if form == "text" else table.latex() for table in everything))
    if form == "text" and LEAVE_ONE_DOMAIN_OUT in selections and all(len(run.test_domains) == 1 for run in runs):
        why = "no table, because it needs runs that hold out two domains. See: pogm sweep --mode full"
        print(f"{LEAVE_ONE_DOMAIN_OUT.title}: {why}")


def write_html(runs: Sequence[Run], out: Path, against: str | None = None) -> None:
    """Write the HTML report and its picture."""
    source = published(against) if against else None
    path = write_report(runs, out, command=shlex.join(["pogm", *sys.argv[1:]]), against=source)
    write_picture(runs, path.with_name("picture.svg"))
    print(f"Report: {path}", file=sys.stderr)
