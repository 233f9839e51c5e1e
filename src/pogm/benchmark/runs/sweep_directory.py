"""Directories of sweeps and of other lists of trials: ``sweep.json``, ``plan.json`` and the index of a plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json, is_empty, read_json, readable_json, write_atomic
from pogm._system.saved import check_form
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial, differences
from pogm.benchmark.results.record_digest import SWEEP
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.plan_index import Counts, Kind, count_states, write_plan_index
from pogm.core.plugins import registered_name

PLAN = "plan.json"
PLAN_BYTES = 1 << 28  # limit for the size of a plan


def check_sweep_owner(folder: Path, sweep: Sweep, allow_change: bool = False) -> str:
    """Raise an error unless the directory belongs to the sweep, is empty or does not exist.

    Of a folder whose images were not read, as in a dry run, only the names of domains and classes are compared.

    Args:
        folder: The directory.
        sweep: The sweep.
        allow_change: Accept the directory of a sweep that this one extends: it has all trials of that one, and more.

    Returns:
        The changes that extend the sweep of the directory; empty if there are none.
    """
    if not (folder / SWEEP).exists():
        if folder.exists() and not is_empty(folder):
            raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")
        return ""
    found, wanted = load_sweep(folder).to_json(titles=False), sweep.to_json(titles=False)
    for saved, given in zip(found["datasets"], wanted["datasets"], strict=False):
        if given.get("content") == "":
            for name in ("content", "intensity"):
                saved.pop(name, None)
                given.pop(name, None)
    changes, is_extension = differences(found, wanted), _is_extension(found, wanted)
    if changes and not (allow_change and is_extension):
        advice = "Add --allow-change to extend it, or choose" if is_extension else "Choose"
        raise UsageError(
            f"Expected {folder} to be new or to belong to this sweep; found another sweep: {changes}. "
            f"{advice} another --out."
        )
    return changes


def _is_extension(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return True if a sweep has all trials of another one: it differs only in more of what is combined."""
    lists, counts = ("algorithms", "datasets"), ("configurations", "trials")
    return (
        {name: value for name, value in found.items() if name not in (*lists, *counts)}
        == {name: value for name, value in wanted.items() if name not in (*lists, *counts)}
        and all(one in wanted[name] for name in lists for one in found[name])
        and all(wanted[name] >= found[name] for name in counts)
    )


def save_sweep(sweep: Sweep, folder: Path, allow_change: bool = False) -> None:
    """Create the directory of a sweep and write ``sweep.json``; see `check_sweep_owner`.

    Raises:
        UsageError: If the directory belongs to another sweep, or contains other files.
    """
    changes = check_sweep_owner(folder, sweep, allow_change)
    if changes or not (folder / SWEEP).exists():
        make_folder(folder)
        write_atomic(folder / SWEEP, readable_json(sweep.to_json()))


def load_sweep(folder: Path) -> Sweep:
    """Read the sweep of a directory.

    Raises:
        UsageError: If there is none, or if its file was changed.
    """
    path = folder / SWEEP
    if not path.exists():
        raise UsageError(
            f"Expected the folder of a sweep, with {SWEEP}; found none in {folder}. Start one with: pogm sweep"
        )
    content = read_json(path)
    try:
        return Sweep.from_json(content)
    except ValueError as error:
        raise UsageError(f"In {path}: {error}") from error


def status(folder: Path) -> Counts:
    """Count the runs of a sweep by dataset, label and state, and write the index of the sweep."""
    return count_states(folder, index_plan(load_sweep(folder).plan(), folder))


def index_plan(trials: Sequence[Trial], folder: Path) -> list[tuple[Kind, str]]:
    """Write the index of the sweep in a directory, and return its content: the kind and id of each trial."""
    runs = [((trial.dataset.title, trial.label), trial.id) for trial in trials]
    if all(":" not in registered_name(cls) for cls in {type(trial.dataset) for trial in trials}):
        write_plan_index(folder, runs)
    return runs


def save_plan(trials: Sequence[Trial], folder: Path) -> None:
    """Write the trials of a directory to ``plan.json`` before they run, so that reports know those still to come."""
    make_folder(folder)
    write_atomic(folder / PLAN, canonical_json([trial.to_json() for trial in trials]).encode())


def load_plan(folder: Path) -> list[Trial]:
    """Read the trials that were last planned for a directory."""
    path = folder / PLAN
    values = read_json(path, PLAN_BYTES)
    try:
        check_form(values, [dict], PLAN)
        return [Trial.from_json(value) for value in values]
    except ValueError as error:
        raise UsageError(f"In {path}: {error} Plan the trials again.") from error
