"""Run directories: which trial they belong to, and what may change in it."""

import dataclasses
from pathlib import Path
from typing import Any

from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import (
    LOCK,
    is_empty,
    lock_folder,
    open_own_file,
    read_json,
    readable_json,
    write_atomic,
)
from pogm._system.saved import check_form
from pogm.benchmark.plan.trial import Trial, differences
from pogm.benchmark.results.combined import COMBINATION
from pogm.benchmark.results.record_digest import DONE, SWEEP, TRIAL
from pogm.benchmark.runs.provenance import read_provenance, stays_deterministic
from pogm.engine import checkpoint

SCHEMA = 1
CHANGEABLE = ("steps", "evaluate_every")  # settings of a trial that its state does not depend on


def check_owner(folder: Path, trial: Trial) -> None:
    """Raise an error unless the run directory belongs to the trial, is empty or does not exist.

    A linked folder in it is refused: files elsewhere would be changed. The run directory itself may be a link.
    """
    try:
        taken = (folder / TRIAL).exists()
        foreign = not taken and folder.exists() and not is_empty(folder)
        linked = [path for path in folder.glob("*") if path.is_symlink() and path.is_dir()] if taken else []
    except OSError as error:
        raise _not_writable(folder, error) from error
    if foreign and is_in_sweep(folder, trial):
        raise IntegrityError(
            f"Expected {TRIAL} in {folder}, a run of a sweep; found other files only. Restore it from a copy, or "
            "delete the folder to start this run again."
        )
    if foreign:
        raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")
    if linked:
        raise IntegrityError(
            f"Expected a folder at {linked[0]}; found a symbolic link to a folder. Replace it by the folder itself."
        )
    if taken and (owner := load_trial(folder)).id != trial.id:
        raise _another_run(folder, owner, trial)


def _another_run(folder: Path, owner: Trial, trial: Trial) -> UsageError:
    """Return the error for a run directory of a trial with other settings."""
    is_safe = _with_changes(owner, trial).id == trial.id
    how = "Add --allow-change to continue with them, or choose" if is_safe else "Choose"
    return UsageError(
        f"Expected {folder} to be new or to belong to this run; found another run: "
        f"{differences(owner.to_json(), trial.to_json())}. {how} another --out. A run can continue with other values "
        f"of {' and '.join(CHANGEABLE)} only."
    )


def _with_changes(owner: Trial, trial: Trial) -> Trial:
    """Return a trial with those settings of another one that may change while it runs."""
    return dataclasses.replace(owner, **{name: getattr(trial, name) for name in CHANGEABLE})


def make_folder(folder: Path) -> None:
    """Create a directory with a lock file in it; raise an error if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        open(folder / LOCK, "ab", opener=open_own_file).close()
    except OSError as error:
        raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Expected to write to the folder {folder}; found: {error.strerror or error}. "
        "Choose another --out, or allow writing there."
    )


def load_trial(folder: Path) -> Trial:
    """Read the trial of a run directory.

    Raises:
        UsageError: If there is no trial, or if its file was changed.
    """
    path = folder / TRIAL
    if not path.exists():
        raise UsageError(
            f"Expected the folder of a run, with {TRIAL}, or of a sweep, with {SWEEP}; found neither in {folder}. "
            "Start one with: pogm run, or pogm sweep"
        )
    content = read_json(path)
    try:
        check_form(content, {"trial": {}, "provenance?": {}}, TRIAL)
        if COMBINATION in content["trial"]:
            raise UsageError(
                "Expected a run; found a combination of runs (pogm soup), which is not trained. Name a run."
            )
        trial = Trial.from_json(content["trial"])
    except ValueError as error:
        used = read_provenance("plugins", folder) or {}
        plugins = ", ".join(f"{name} ({package})" for name, package in used.items())
        raise UsageError(f"In {path}: {error}{f' The run began with {plugins}.' if used else ''}") from error
    content.pop("provenance", None)
    if changes := differences(content, _description(trial)):
        raise UsageError(
            f"Expected {path} as `pogm run` wrote it; found it changed: {changes}. Undo the change, or start a new run."
        )
    return trial


def _description(trial: Trial) -> dict[str, Any]:
    """Return the content of ``trial.json`` without the provenance; all of it follows from the trial."""
    return {
        "schema": SCHEMA,
        "id": trial.id,
        "trial": trial.to_json(),
        "label": trial.label,
        "domains": list(trial.dataset.domains),
        "num_classes": trial.dataset.num_classes,
    }


def write_trial(folder: Path, trial: Trial, provenance: dict[str, Any]) -> None:
    """Write ``trial.json``; if it exists already, check that the run continues with the same data.

    Raises:
        DataError: If the images differ from those that the run began with.
        UsageError: If a deterministic run is resumed without the option.
    """
    if (folder / TRIAL).exists():
        started = read_json(folder / TRIAL).get("provenance") or {}
        before = started.get("content")
        if before is not None and before != provenance.get("content"):
            raise DataError(
                f"Expected the images that the run in {folder} began with; found others at {provenance.get('data')}. "
                "Restore them, name the folder that has them with --data, or start a new run."
            )
        if not any((folder / "checkpoints").glob("*.json")):  # the run starts again, perhaps with other options
            new = provenance
        elif stays_deterministic(folder, started, provenance):
            new = started
        else:
            new = started | {"deterministic": False}
        if new == started:
            return
    else:
        new = provenance
    write_atomic(folder / TRIAL, readable_json(_description(trial) | {"provenance": new}))


def extend_run(folder: Path, steps: int) -> Trial:
    """Give a run more minibatches, so that it continues from its last checkpoint.

    The result is that of a run that was begun with the larger number, if the algorithm has no schedule that depends on
    it and the last evaluation was a regular one.

    Args:
        folder: Directory of the run, finished or not.
        steps: New number of minibatches.

    Returns:
        The extended trial.

    Raises:
        UsageError: If the run has as many minibatches already, or belongs to a sweep.
    """
    extended = extend_trial(folder, steps)
    change_run(folder, extended)
    return extended


def extend_trial(folder: Path, steps: int) -> Trial:
    """Return the trial of a run with more minibatches, and write nothing; see `extend_run`."""
    trial = load_trial(folder)
    if steps <= trial.steps:
        raise UsageError(f"Expected --steps above {trial.steps}, which {folder} has already; found {steps}.")
    _check_single(folder, trial)
    return dataclasses.replace(trial, steps=steps)


def check_change(folder: Path, trial: Trial) -> Trial:
    """Return the trial of a run directory, if the run can continue as another one with other values of `CHANGEABLE`.

    Raises:
        UsageError: If other settings differ, too, if the run has trained more minibatches than the trial has, or if it
            belongs to a sweep.
    """
    owner = load_trial(folder)
    if owner.id == trial.id:
        return owner
    if _with_changes(owner, trial).id != trial.id:
        raise _another_run(folder, owner, trial)
    _check_single(folder, owner)
    trained = checkpoint.newest_step(folder / "checkpoints") * owner.algorithm.minibatches
    if trial.steps < trained:
        raise UsageError(f"Expected --steps of at least {trained}, which {folder} has trained; found {trial.steps}.")
    return owner


def change_run(folder: Path, trial: Trial) -> str:
    """Let a run continue with other values of `CHANGEABLE`. Its provenance keeps the ids that it had before.

    Args:
        folder: Directory of the run, finished or not.
        trial: The trial with its new settings.

    Returns:
        The changes as text; empty if there are none.

    Raises:
        UsageError: If the run cannot continue with them, see `check_change`.
    """
    owner = check_change(folder, trial)
    if owner.id == trial.id:
        return ""
    with lock_folder(folder):
        provenance = read_json(folder / TRIAL).get("provenance") or {}
        former = [*provenance.get("former_ids", ()), owner.id]
        (folder / DONE).unlink(missing_ok=True)  # first: without it, the run is unfinished whatever happens next
        saved = _description(trial) | {"provenance": {**provenance, "former_ids": former}}
        write_atomic(folder / TRIAL, readable_json(saved))
    return differences(owner.to_json(), trial.to_json())


def _check_single(folder: Path, trial: Trial) -> None:
    if is_in_sweep(folder, trial):
        raise UsageError(
            f"Expected a single run to change; found {folder}, a run of a sweep, whose trials are fixed. "
            "Start another sweep."
        )


def is_in_sweep(folder: Path, trial: Trial) -> bool:
    """Return whether a run directory belongs to a list of trials, whose directories have their ids as names.

    The steps of such a run cannot change, so that nothing reads its checkpoints when it is done.
    """
    return folder.resolve().name == trial.id


def newest_checkpoint(folder: Path) -> str:
    """Return the name of the newest checkpoint of a run, which is equal for runs at the same step; or an empty text."""
    return checkpoint.newest_name(folder / "checkpoints")


def has_begun(trial: Trial, root: Path) -> bool:
    """Return whether the run directory of a trial was used before, so that there may be a checkpoint."""
    return (root / trial.id / TRIAL).exists()
