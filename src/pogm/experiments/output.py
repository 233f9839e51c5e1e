"""Tables, figures and the page of experiments, from their runs."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pogm._system.files import canonical_json, digest, write_atomic
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.comparison import Comparison, comparisons_csv
from pogm.benchmark.results.published import Note
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.table import Table
from pogm.benchmark.results.table_formats import tables_csv
from pogm.benchmark.runs.directory import make_folder
from pogm.experiments import all_experiments
from pogm.experiments.base import Exhibit, Experiment, Plan, Scale
from pogm.report.draw import MissingPackageError, write_figure
from pogm.report.figure import Figure
from pogm.report.page import Section, render, write_page

RUNS = "runs"


def show(chosen: Sequence[Experiment], scale: Scale, out: Path) -> tuple[Path, dict[str, list[Exhibit]]]:
    """Print the tables of the chosen experiments, write them and the figures to files, and write a page.

    The page also contains experiments that earlier commands wrote to the same folder.

    Returns:
        The folder of the files, and the exhibits of the chosen experiments by name.
    """
    folder, run_folder = output_folder(scale, out), out / scale.name / RUNS
    made = [one for one in all_experiments().values() if one in chosen or any(folder.glob(f"{one.name}*.*"))]
    runs = {run.id: run for run in read_runs(run_folder)} if run_folder.is_dir() else {}
    sections: list[Section] = []
    shown: dict[str, Run] = {}
    by_name: dict[str, list[Exhibit]] = {}
    for one in made:
        rows = one.rows(scale)
        found = label_runs(rows, runs, run_folder)
        found += find_combinations(found, runs) if one.combines else []
        shown |= {run.id: run for run in found}
        exhibits = [_with_note(exhibit, scale) if rows else exhibit for exhibit in one.exhibits(found, scale)]
        sections.append(Section(one.title, tuple(exhibits), one.text, command(one.name, scale, out)))
        if one in chosen:
            _write_exhibits(one.name, exhibits, folder)
            _print_exhibits(one.title, exhibits)
            by_name[one.name] = exhibits
    path = folder / "index.html"
    counted = [run for run in (shown if scale.changed_by else runs).values() if run.records or run.failure or run.done]
    try:
        title = f"The paper's experiments, {folder.name}"
        write_page(path, render(title, sections, facts=_facts(counted, scale)))
        note(f"Page: {path}")
    except MissingPackageError as error:
        print_line(f"pogm: The page was not written, and figures only as numbers (csv). {error}", file=sys.stderr)
    return folder, by_name


def output_folder(scale: Scale, out: Path) -> Path:
    """Return the folder of the tables and the page. A scale that options changed has its own folder."""
    if not scale.changed_by:
        return out / scale.name
    values = asdict(scale)
    # Names of fields as in earlier versions: a changed scale keeps its folder.
    values["soon"] = values.pop("latest_start")
    if values["evaluation"] == "all":
        del values["evaluation"]
    values["given"] = sorted({word for word in values.pop("changed_by") if word.startswith("--")})
    return out / f"{scale.name}-{digest(canonical_json(values).encode())[:8]}"


def label_runs(rows: Plan, runs: Mapping[str, Run], folder: Path) -> list[Run]:
    """Return the runs of a plan in the order of its rows, labelled by the row. A missing run is an empty one."""
    return [
        replace(runs.get(trial.id) or empty_run(trial, folder), label=row.name)
        for row, trials in rows.items()
        for trial in trials
    ]


def find_combinations(planned: Iterable[Run], runs: Mapping[str, Run]) -> list[Run]:
    """Return the combinations whose members are all among the planned runs."""
    names = {run.id for run in planned}
    return [run for run in runs.values() if run.members and names.issuperset(run.members)]


def describe_changes(scale: Scale) -> str:
    """Return a sentence that says which options changed the scale."""
    return f"Changed from the scale {scale.name}: {shlex.join(scale.changed_by)}"


def _with_note(exhibit: Exhibit, scale: Scale) -> Exhibit:
    """Return the exhibit with a note that says which options changed the scale."""
    if not scale.changed_by:
        return exhibit
    if isinstance(exhibit, Table):
        return replace(exhibit, footnotes=(*exhibit.footnotes, describe_changes(scale)))
    if isinstance(exhibit, Figure):
        return replace(exhibit, notes=(*exhibit.notes, describe_changes(scale)))
    source = replace(exhibit.source, notes=(*exhibit.source.notes, Note(describe_changes(scale))))
    return replace(exhibit, source=source)


def empty_run(trial: Trial, folder: Path) -> Run:
    """Return a run without records, so that tables show an empty cell for it."""
    values = trial.to_json()
    return Run(folder / trial.id, trial.id, values, trial.label, trial.dataset.domains, (), False, None, {})


def command(name: str, scale: Scale, out: Path) -> str:
    """Return the command line that makes an experiment."""
    plain = f"pogm experiment {name} --scale {scale.name} --out {out}"
    return f"{plain} {shlex.join(scale.changed_by)}" if scale.changed_by else plain


def _facts(runs: Iterable[Run], scale: Scale) -> dict[str, str]:
    counts = Counter(run.status for run in runs)
    devices = {
        f"{run.provenance.get('device')}, torch {run.provenance.get('torch')}"
        + ", deterministic" * bool(run.provenance.get("deterministic"))
        for run in runs
        if run.provenance
    }
    return {
        "Scale": scale.summary,
        **({"Changed by": shlex.join(scale.changed_by)} if scale.changed_by else {}),
        "Runs": " · ".join(f"{count} {status}" for status, count in sorted(counts.items())),
        "On": "; ".join(sorted(devices)),
    }


def _print_exhibits(title: str, exhibits: Sequence[Exhibit]) -> None:
    print(f"{title}\n")
    for exhibit in exhibits:
        if isinstance(exhibit, Figure):
            print("\n".join((exhibit.title, *exhibit.notes)) + "\n")
        else:
            print(exhibit.text())


def _write_exhibits(name: str, exhibits: Sequence[Exhibit], folder: Path) -> None:
    """Write tables as ``<name>.txt``, ``.csv`` and ``.tex``, and figures under their own names."""
    tables = [exhibit for exhibit in exhibits if isinstance(exhibit, Table)]
    comparisons = [exhibit for exhibit in exhibits if isinstance(exhibit, Comparison)]
    printed = [exhibit for exhibit in exhibits if isinstance(exhibit, Table | Comparison)]
    make_folder(folder)
    if printed:
        write_atomic(folder / f"{name}.txt", "\n".join(exhibit.text() for exhibit in printed).encode())
        write_atomic(folder / f"{name}.tex", "\n".join(exhibit.latex() for exhibit in printed).encode())
        write_atomic(folder / f"{name}.csv", tables_csv(tables).encode())
    if comparisons:
        write_atomic(folder / f"{name}_published.csv", comparisons_csv(comparisons).encode())
    for figure in (exhibit for exhibit in exhibits if isinstance(exhibit, Figure)):
        try:
            write_figure(figure, folder)
        except MissingPackageError:  # the message about the page also says this
            write_figure(figure, folder, formats=())
