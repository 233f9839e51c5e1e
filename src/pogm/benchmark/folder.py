"""Whose a run folder is: the file that says which trial lives there, and the checks before anyone writes."""

from pathlib import Path
from typing import Any

from pogm.benchmark.trial import Trial, differences
from pogm.core.errors import DataError, UsageError
from pogm.core.files import LOCK, is_empty, read_json, readable_json, write_whole

SCHEMA = 1
TRIAL = "trial.json"


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
        before = read_json(folder / TRIAL).get("provenance", {}).get("content")
        if before is not None and before != provenance.get("content"):
            raise DataError(
                f"Expected the images that the run in {folder} began with; found others at {provenance.get('data')}. "
                "Restore them, name the folder that has them with --data, or start a new run."
            )
    else:
        write_whole(folder / TRIAL, readable_json(_description(trial) | {"provenance": provenance}))
