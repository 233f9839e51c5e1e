"""The trials that belong into a folder, written down before they run, so that others know what is still to come."""

from collections.abc import Sequence
from pathlib import Path

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json, read_json, write_whole
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.directory import make_folder

PLAN = "plan.json"
MOST = 1 << 28  # bytes


def save_plan(trials: Sequence[Trial], folder: Path) -> None:
    """Make the folder and write down what will be in it; a newer plan takes the place of an older one."""
    make_folder(folder)
    write_whole(folder / PLAN, canonical_json([trial.to_json() for trial in trials]).encode())


def load_plan(folder: Path) -> list[Trial]:
    """The trials that were last planned for a folder."""
    values = read_json(folder / PLAN, MOST)
    if not isinstance(values, list):
        raise UsageError(f"Expected a list of trials in {folder / PLAN}; found something else. Plan them again.")
    return [Trial.from_json(value) for value in values]
