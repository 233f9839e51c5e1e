"""What ``pogm experiment`` does: run what the tables and figures of the paper need, and make them."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from pogm.benchmark.comparison import Comparison, comparisons_csv
from pogm.benchmark.estimate import estimates
from pogm.benchmark.execution import executor
from pogm.benchmark.folder import make_folder
from pogm.benchmark.plan import save_plan
from pogm.benchmark.records import Run, read_runs
from pogm.benchmark.run import Settings
from pogm.benchmark.sweep import carry_out
from pogm.benchmark.tables import Table, tables_csv
from pogm.benchmark.trial import Trial
from pogm.core.files import write_whole
from pogm.driving import all_done, check_counts, prepare, settings_of, show_estimates
from pogm.experiments import all_experiments, experiments_named
from pogm.experiments.base import Exhibit, Experiment, Scale, scale_named
from pogm.networks.weights import weights_of
from pogm.report.figure import Figure
from pogm.report.page import Section, write_page
from pogm.report.paper import write_figure

RUNS = "runs"


def experiment(options: argparse.Namespace) -> int:
    """Make tables and figures of the paper: run what is missing, print them, write a page and files for a paper."""
    scale, chosen = scale_named(options.scale), experiments_named(options.names)
    if options.weights:
        scale = replace(scale, weights=weights_of(options.weights))
    check_counts(options, "workers")
    settings = settings_of(options)
    plans = {one.name: one.plan(scale) for one in chosen}
    trials = together(plans.values())
    folder = options.out / scale.name
    if options.dry_run:
        _forecast(plans, trials, folder, settings, options)
        return 0
    done = True
    if trials:
        prepare([trial for trial in trials if not (folder / RUNS / trial.id / "done").exists()], settings)
        save_plan(trials, folder / RUNS)
        execute = executor(options.executor, options.workers, options.address)
        outcomes = carry_out(trials, folder / RUNS, settings, execute, options.retry_failed)
        done = all_done(outcomes, len(trials), folder / RUNS)
    show(chosen, scale, options.out)
    return 0 if done else 1


def together(plans: Iterable[Sequence[Trial]]) -> list[Trial]:
    """Every trial of several plans once: trial by trial and configuration by configuration, as in a sweep."""
    found = {trial.id: trial for plan in plans for trial in plan}
    return sorted(found.values(), key=lambda trial: (trial.trial_seed, trial.hparams_seed))


def _forecast(
    plans: dict[str, list[Trial]],
    trials: Sequence[Trial],
    folder: Path,
    settings: Settings,
    options: argparse.Namespace,
) -> None:
    """Say how many runs there are and how many are left, then how long those will take."""
    done = {trial.id for trial in trials if (folder / RUNS / trial.id / "done").exists()}
    for name, plan in plans.items():
        print(f"{name:<16} {len(plan)} runs, {sum(trial.id in done for trial in plan)} of them done")
    left = [trial for trial in trials if trial.id not in done]
    shared = sum(map(len, plans.values())) - len(trials)
    print(f"All {len(trials)} runs ({shared} of the above are shared), {len(done)} of them done.", flush=True)
    if left:
        at_once = options.workers if settings.engine.place().type == "cpu" else 1
        show_estimates(estimates(left, settings), len(left), at_once)


def show(chosen: Sequence[Experiment], scale: Scale, out: Path) -> None:
    """Print the tables of experiments; write these and the figures to files; write a page of all made so far."""
    folder = out / scale.name
    made = [one for one in all_experiments().values() if one in chosen or any(folder.glob(f"{one.name}*.*"))]
    runs = {run.id: run for run in read_runs(folder / RUNS)} if (folder / RUNS).is_dir() else {}
    can_draw = find_spec("matplotlib") is not None
    sections, drawn = [], False
    for one in made:
        found = [runs.get(trial.id) or absent(trial, folder / RUNS) for trial in one.plan(scale)]
        exhibits = one.exhibits(found, scale)
        sections.append(Section(one.title, tuple(exhibits), one.text, command(one.name, scale, out)))
        if one in chosen:
            _write(one.name, exhibits, folder, can_draw)
            _print(one.title, exhibits)
            drawn = drawn or any(isinstance(exhibit, Figure) for exhibit in exhibits)
    if drawn and not can_draw:
        print(
            "pogm: Figures were written as numbers alone (csv): matplotlib draws them as PDF and SVG. "
            "Install it: pip install 'pogm[figures]'",
            file=sys.stderr,
        )
    path = folder / "index.html"
    write_page(path, f"The paper's experiments, {scale.name}", sections, facts=_facts(runs.values(), scale))
    print(f"Page: {path}", file=sys.stderr)


def absent(trial: Trial, folder: Path) -> Run:
    """What stands for a run that is not there, so that tables have a hole in its place."""
    values = trial.to_json()
    return Run(folder / trial.id, trial.id, values, trial.label, trial.dataset.domains, (), False, None, {})


def command(name: str, scale: Scale, out: Path) -> str:
    """What one has to type for an experiment."""
    return f"pogm experiment {name} --scale {scale.name} --out {out}"


def _facts(runs: Iterable[Run], scale: Scale) -> dict[str, str]:
    counts = Counter(run.status for run in runs)
    places = {
        f"{run.provenance.get('device')}, torch {run.provenance.get('torch')}"
        + ", deterministic" * bool(run.provenance.get("deterministic"))
        for run in runs
        if run.provenance
    }
    return {
        "Scale": scale.summary,
        "Runs": " · ".join(f"{count} {status}" for status, count in sorted(counts.items())),
        "On": "; ".join(sorted(places)),
    }


def _print(title: str, exhibits: Sequence[Exhibit]) -> None:
    print(f"{title}\n")
    for exhibit in exhibits:
        if isinstance(exhibit, Figure):
            print("\n".join((exhibit.title, *exhibit.notes)) + "\n")
        else:
            print(exhibit.text())


def _write(name: str, exhibits: Sequence[Exhibit], folder: Path, can_draw: bool) -> None:
    """Tables as ``<name>.txt``, ``.csv`` and ``.tex``; figures under their own names."""
    tables = [exhibit for exhibit in exhibits if isinstance(exhibit, Table)]
    beside = [exhibit for exhibit in exhibits if isinstance(exhibit, Comparison)]
    printed = [exhibit for exhibit in exhibits if isinstance(exhibit, Table | Comparison)]
    make_folder(folder)
    if printed:
        write_whole(folder / f"{name}.txt", "\n".join(exhibit.text() for exhibit in printed).encode())
        write_whole(folder / f"{name}.tex", "\n".join(exhibit.latex() for exhibit in printed).encode())
        write_whole(folder / f"{name}.csv", tables_csv(tables).encode())
    if beside:
        write_whole(folder / f"{name}_published.csv", comparisons_csv(beside).encode())
    for figure in (exhibit for exhibit in exhibits if isinstance(exhibit, Figure)):
        if can_draw:
            write_figure(figure, folder)
        else:
            write_whole(folder / f"{figure.name}.csv", figure.csv().encode())
