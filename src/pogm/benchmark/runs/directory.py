"""Whose a run folder is: the file that says which trial lives there, and the checks before anyone writes."""

import warnings
from pathlib import Path
from typing import Any

from pogm._system.errors import DataError, UsageError
from pogm._system.files import LOCK, is_empty, read_json, readable_json, write_whole
from pogm.benchmark.plan.trial import Trial, differences

SCHEMA = 1
TRIAL = "trial.json"
REPEATABLE = ("pogm", "torch", "device", "processes", "captured", "compiled", "trajectories")  # what decides the bits


class DeterminismWarning(UserWarning):
    """A run whose results cannot be repeated bit for bit, although it was asked to be deterministic."""


def check_owner(folder: Path, trial: Trial) -> None:
    """Make sure that the folder belongs to this trial, or to nobody."""
    try:
        taken = (folder / TRIAL).exists()
        foreign = not taken and folder.exists() and not is_empty(folder)
    except OSError as error:
        raise _not_writable(folder, error) from error
    if foreign:
        raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")
    if taken and (theirs := load_trial(folder)).id != trial.id:
        raise UsageError(
            f"Expected {folder} to be new or to belong to this run; found another run's: "
            f"{differences(theirs.to_json(), trial.to_json())}. Choose another --out."
        )


def make_folder(folder: Path) -> None:
    """Make the folder, or make sure that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Expected to write to the folder {folder}; found: {error.strerror or error}. "
        "Choose another --out, or permit writing there."
    )


def load_trial(folder: Path) -> Trial:
    """The trial of a run folder, unless its file is not as `pogm run` wrote it."""
    path = folder / TRIAL
    if not path.exists():
        raise UsageError(f"Expected a run folder with {TRIAL}; found none in {folder}. Start one with: pogm run")
    content = read_json(path)
    if not isinstance(content, dict) or "trial" not in content:
        raise UsageError(f"Expected a field 'trial' in {path}; found none. It is not a file of ours.")
    try:
        trial = Trial.from_json(content["trial"])
    except UsageError as error:
        raise UsageError(f"In {path}: {error}") from error
    content.pop("provenance", None)
    if unlike := differences(content, _description(trial)):
        raise UsageError(
            f"Expected {path} as `pogm run` wrote it; found it changed: {unlike}. Undo that, or start a new run."
        )
    return trial


def fact_of(what: str, folder: Path) -> Any:
    """What a run, or the first run of a sweep, says of how it was made; None if nothing."""
    runs = [folder / TRIAL, *folder.glob(f"*/{TRIAL}")]
    saved = next((read_json(run) for run in runs if run.exists()), None)
    return saved["provenance"].get(what) if isinstance(saved, dict) and "provenance" in saved else None


def place_of(what: str, folder: Path) -> Path | None:
    """Where a run, or the first run of a sweep, found its data or weights, if they are still there."""
    place = fact_of(what, folder)
    return Path(place) if isinstance(place, str) and Path(place).exists() else None


def _description(trial: Trial) -> dict[str, Any]:
    """What the file says beside where it was written; all of it follows from the trial."""
    return {
        "schema": SCHEMA,
        "id": trial.id,
        "trial": trial.to_json(),
        "label": trial.label,
        "domains": list(trial.dataset.domains),
        "num_classes": trial.dataset.num_classes,
    }


def describe(folder: Path, trial: Trial, provenance: dict[str, Any]) -> None:
    """Make the folder this trial's, if it is not yet; if it is, make sure that the data are what they were."""
    if (folder / TRIAL).exists():
        started = read_json(folder / TRIAL).get("provenance", {})
        before = started.get("content")
        if before is not None and before != provenance.get("content"):
            raise DataError(
                f"Expected the images that the run in {folder} began with; found others at {provenance.get('data')}. "
                "Restore them, name the folder that has them with --data, or start a new run."
            )
        if not any((folder / "checkpoints").glob("*.json")):  # it starts again, perhaps with other options
            made = provenance
        elif still_repeatable(folder, started, provenance):
            made = started
        else:
            made = started | {"deterministic": False}
        if made == started:
            return
    else:
        made = provenance
    write_whole(folder / TRIAL, readable_json(_description(trial) | {"provenance": made}))


def still_repeatable(folder: Path, started: dict[str, Any], now: dict[str, Any]) -> bool:
    """Compare the provenance of a run at its start with that of a resume; False if determinism was lost.

    A run that began without the option is not deterministic, whatever it is resumed with. One that began with it must
    be resumed with it, and stays deterministic on the same device and software. On a CPU the option changes nothing.

    Raises:
        UsageError: a deterministic run on a GPU is resumed without the option.
    """
    on_cpu = started.get("device") == now.get("device") == "cpu"
    if not started.get("deterministic"):
        if now.get("deterministic") and not on_cpu:
            text = f"The run in {folder} began without --deterministic: its results cannot be repeated bit for bit."
            warnings.warn(text, DeterminismWarning, stacklevel=3)
        return True
    if not now.get("deterministic") and not on_cpu:
        raise UsageError(
            f"Expected --deterministic, with which the run in {folder} began; found a resume without it. "
            "Add it, or start a new run in another folder."
        )
    decisive = (*REPEATABLE, *(("threads",) if on_cpu else ()))
    changed = [f"{name} {now.get(name)} (was {started.get(name)})" for name in decisive if _differ(name, started, now)]
    if changed:
        text = (
            f"The run in {folder} is no longer deterministic, since it is resumed with {', '.join(changed)}. Its "
            "provenance says so from now on."
        )
        warnings.warn(text, DeterminismWarning, stacklevel=3)
    return not changed


def _differ(name: str, started: dict[str, Any], now: dict[str, Any]) -> bool:
    return bool(started.get(name) != now.get(name))
