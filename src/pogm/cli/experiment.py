"""``pogm experiment``: run what the tables and figures of the paper need, and make them."""

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown
from pogm._system.files import canonical_json, digest, write_whole
from pogm.benchmark.plan.parsing import check_settings
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.comparison import Comparison, comparisons_csv
from pogm.benchmark.results.published import Note
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.tables import Table, tables_csv
from pogm.benchmark.runs.directory import make_folder, save_plan
from pogm.benchmark.runs.estimate import estimates
from pogm.benchmark.runs.executors import carry_out, executor
from pogm.benchmark.runs.runner import Settings
from pogm.cli.options import (
    all_done,
    check_counts,
    check_weights_exist,
    mention_late_schedules,
    prepare,
    settings_of,
    show_estimates,
)
from pogm.data.datasets import all_datasets, dataset_class
from pogm.data.datasets.folder import Folder
from pogm.experiments import all_experiments, experiments_named
from pogm.experiments.base import Exhibit, Experiment, Plan, Row, Scale, folded, scale_named
from pogm.models import check_network
from pogm.models.weights import WEIGHTS_VARIABLE, known_file, network_of, weights_of
from pogm.report.figure import Figure
from pogm.report.page import Section, write_page
from pogm.report.publication import write_figure

RUNS = "runs"


def experiment(options: argparse.Namespace) -> int:
    """Make tables and figures of the paper: run what is missing, print them, write a page and files for a paper."""
    chosen, scale = experiments_named(options.names), scale_of(options)
    check_counts(options, "workers")
    check_scale(chosen, scale)
    settings = settings_of(options)
    plans = {one.name: one.rows(scale) for one in chosen}
    trials = together(plans.values())
    for first in {row: found[0] for plan in plans.values() for row, found in plan.items()}.values():
        mention_late_schedules(first)
    runs = options.out / scale.name / RUNS
    left = [trial for trial in trials if not (runs / trial.id / "done").exists()]
    check_weights_exist(left, settings)
    if options.dry_run:
        _forecast(plans, trials, runs, settings, options, scale)
        return 0
    done = True
    if trials:
        prepare(left, settings)
        save_plan(trials, runs)
        execute = executor(options.executor, options.workers, options.address)
        outcomes = carry_out(trials, runs, settings, execute, options.retry_failed)
        done = all_done(outcomes, len(trials), runs)
    show(chosen, scale, options.out)
    return 0 if done else 1


def scale_of(options: argparse.Namespace) -> Scale:
    """The scale of the command line, changed by its options; ``Scale.given`` says by which."""
    scale = scale_named(options.scale)
    changes: dict[str, Any] = {}
    words: list[str] = []
    for name in ("datasets", "algorithms", "set"):
        if values := getattr(options, name):
            changes["settings" if name == "set" else name] = tuple(values)
            words += [f"--{name}", *values] if name != "set" else [w for value in values for w in ("--set", value)]
    for name in ("network", "precision", "steps", "evaluate_every", "trials"):
        if (value := getattr(options, name)) is not None:
            changes[name] = value
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name in changes.get("datasets", ()):
        if name == Folder.__name__:
            raise unknown("a dataset", name, all_datasets().keys() - {name})
        dataset_class(name)
    for name in ("datasets", "algorithms"):
        if len(set(changes.get(name, ()))) < len(changes.get(name, ())):
            raise UsageError(f"Expected each of --{name} once; found {', '.join(changes[name])}. Leave one out.")
    for name in ("steps", "evaluate_every", "trials"):
        if changes.get(name, 1) < 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"Expected {option} of at least 1; found {changes[name]}. Leave it out.")
    if "network" in changes:
        check_network(changes["network"])
        changes["large_network"] = None
    if "trials" in changes:
        changes["seeds"] = changes["trials"]  # of the figures
    if "steps" in changes and scale.soon is not None:
        changes["soon"] = min(scale.soon, max(1, changes["steps"] // 3))
    scale = replace(scale, **changes)
    return _with_weights(replace(scale, given=tuple(words)), options.weights)


def _with_weights(scale: Scale, path: Path | None) -> Scale:
    """The scale with weights from a file, and with the network that the file is known to belong to.

    The file is that of --weights; without it, a known file at or in $POGM_WEIGHTS, unless --network chose a network.
    """
    large = any(dataset_class(name).large for name in scale.datasets)
    if path is None:
        place = os.environ.get(WEIGHTS_VARIABLE)
        path = known_file(Path(place)) if place and large and not scale.was_given("--network") else None
        if path is None:
            return scale
        print(
            f"pogm: First weights of networks for photographs: {path}, found by ${WEIGHTS_VARIABLE}.", file=sys.stderr
        )
    weights, words = weights_of(path), [*scale.given, "--weights", str(path)]
    network = None if scale.was_given("--network") else network_of(weights)
    if network is not None:
        scale = replace(scale, large_network=network)
    return replace(scale, weights=weights, given=tuple(words))


def check_scale(chosen: Sequence[Experiment], scale: Scale) -> None:
    """Check --algorithms and --set against the rows of the chosen experiments.

    Raises:
        UsageError: If a name is no row, if an experiment would have no row left, or if a setting does not apply.
    """
    few = replace(scale, settings=(), algorithms=(), configurations=1, ablation=1, trials=1, seeds=1)
    plans = {one.name: one.plan(few) for one in chosen}
    rows = {folded(row.name): row.name for plan in plans.values() for row in plan}
    for name in scale.algorithms:
        if folded(name) not in rows:
            raise unknown(f"a row of {', '.join(plans)}", name, rows.values())
    wanted = set(map(folded, scale.algorithms or rows.values()))
    kept = {name: {row: plan[row] for row in plan if folded(row.name) in wanted} for name, plan in plans.items()}
    for name, plan in plans.items():
        if plan and not kept[name]:
            raise UsageError(
                f"Expected a row of {name} in --algorithms ({', '.join(row.name for row in plan)}); found "
                f"{', '.join(scale.algorithms)}. Add one, or leave out {name}."
            )
    found = {
        row.combination(trial.dataset): None for plan in kept.values() for row, own in plan.items() for trial in own
    }
    check_settings(scale.settings, list(found), "")
    _check_effect([row for plan in kept.values() for row in plan], scale.settings)


def _check_effect(rows: Sequence[Row], settings: Sequence[str]) -> None:
    """Refuse a setting that every row fixes to a value of its own."""
    for setting in settings:
        prefix, _, name = setting.partition("=")[0].rpartition(".")
        concerned = [row for row in rows if prefix in ("", "algorithm", "training", row.algorithm)]
        if concerned and all(row.fixes(name) for row in concerned):
            raise UsageError(
                f"Expected a setting that the rows leave open; found {setting!r}, which all of them fix "
                f"({concerned[0].name}, for example). Leave it out."
            )


def together(plans: Iterable[Plan]) -> list[Trial]:
    """Every trial of several plans once: trial by trial and configuration by configuration, as in a sweep."""
    found = {trial.id: trial for plan in plans for own in plan.values() for trial in own}
    return sorted(found.values(), key=lambda trial: (trial.trial_seed, trial.hparams_seed))


def _forecast(
    plans: Mapping[str, Plan],
    trials: Sequence[Trial],
    runs: Path,
    settings: Settings,
    options: argparse.Namespace,
    scale: Scale,
) -> None:
    """Say how many runs there are and how many are left, then how long those will take."""
    done = {trial.id for trial in trials if (runs / trial.id / "done").exists()}
    if scale.given:
        print(changes(scale))
    planned = {name: {trial.id for own in plan.values() for trial in own} for name, plan in plans.items()}
    for name, ids in planned.items():
        print(f"{name:<16} {len(ids)} runs, {len(ids & done)} of them done")
    left = [trial for trial in trials if trial.id not in done]
    shared = sum(map(len, planned.values())) - len(trials)
    print(f"All {len(trials)} runs ({shared} of the above are shared), {len(done)} of them done.", flush=True)
    if left:
        at_once = options.workers if settings.engine.torch_device().type == "cpu" else 1
        show_estimates(estimates(left, settings), len(left), at_once)


def show(chosen: Sequence[Experiment], scale: Scale, out: Path) -> None:
    """Print the tables of experiments; write these and the figures to files; write a page of all made so far."""
    folder, place = folder_of(scale, out), out / scale.name / RUNS
    made = [one for one in all_experiments().values() if one in chosen or any(folder.glob(f"{one.name}*.*"))]
    runs = {run.id: run for run in read_runs(place)} if place.is_dir() else {}
    can_draw = find_spec("matplotlib") is not None
    sections, drawn = [], False
    shown: dict[str, Run] = {}
    for one in made:
        rows = one.rows(scale)
        found = labelled(rows, runs, place)
        shown |= {run.id: run for run in found}
        exhibits = [_noted(exhibit, scale) if rows else exhibit for exhibit in one.exhibits(found, scale)]
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
    counted = [run for run in (shown if scale.given else runs).values() if run.records or run.failure or run.done]
    write_page(path, f"The paper's experiments, {folder.name}", sections, facts=_facts(counted, scale))
    print(f"Page: {path}", file=sys.stderr)


def folder_of(scale: Scale, out: Path) -> Path:
    """Folder of the tables and the page. A scale that options changed has its own, beside that of the plain scale."""
    if not scale.given:
        return out / scale.name
    values = asdict(scale) | {"given": sorted({word for word in scale.given if word.startswith("--")})}
    return out / f"{scale.name}-{digest(canonical_json(values).encode())[:8]}"


def labelled(rows: Plan, runs: Mapping[str, Run], place: Path) -> list[Run]:
    """Runs of a plan, row by row and labelled by the row; a run that is not there is an absent one."""
    return [
        replace(runs.get(trial.id) or absent(trial, place), label=row.name)
        for row, own in rows.items()
        for trial in own
    ]


def changes(scale: Scale) -> str:
    """Sentence that says which options changed the scale."""
    return f"Changed from the scale {scale.name}: {shlex.join(scale.given)}"


def _noted(exhibit: Exhibit, scale: Scale) -> Exhibit:
    """The exhibit with a note that says which options changed the scale."""
    if not scale.given:
        return exhibit
    if isinstance(exhibit, Table):
        return replace(exhibit, footnotes=(*exhibit.footnotes, changes(scale)))
    if isinstance(exhibit, Figure):
        return replace(exhibit, notes=(*exhibit.notes, changes(scale)))
    source = replace(exhibit.source, notes=(*exhibit.source.notes, Note(changes(scale))))
    return replace(exhibit, source=source)


def absent(trial: Trial, folder: Path) -> Run:
    """What stands for a run that is not there, so that tables have a hole in its place."""
    values = trial.to_json()
    return Run(folder / trial.id, trial.id, values, trial.label, trial.dataset.domains, (), False, None, {})


def command(name: str, scale: Scale, out: Path) -> str:
    """Command line that makes an experiment."""
    plain = f"pogm experiment {name} --scale {scale.name} --out {out}"
    return f"{plain} {shlex.join(scale.given)}" if scale.given else plain


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
        **({"Changed by": shlex.join(scale.given)} if scale.given else {}),
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
