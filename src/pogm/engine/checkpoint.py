"""Checkpoints: a ``TrainState`` as a file of tensors, and a manifest with its checksum that is written last."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pogm._system.errors import IntegrityError, PogmError
from pogm._system.files import canonical_json, digest, read_json, remove_temporary, write_atomic
from pogm._system.messages import log, log_time
from pogm._system.moved import rename_metrics
from pogm._system.saved import check_form, read_regular
from pogm.core import trees
from pogm.core.flat_params import FlatParams, flatten
from pogm.engine.vectorise import TrainState

KEPT = 2  # checkpoints of a run that are kept
MANIFEST = {  # form of a manifest; earlier versions did not write all fields
    "trial": str,
    "step": int,
    "after": int,
    "sha256": str,
    "bytes": int,
    "selected?": {"step": int, "validation": (int, float), "sha256?": str},
    "records?": {"bytes": int, "sha256": str},
}


class CheckpointWarning(UserWarning):
    """Warning that a damaged checkpoint was skipped."""


def save(folder: Path, train_state: TrainState, *, trial: str, after: int, keep: int = KEPT, **extra: Any) -> None:
    """Write a checkpoint, and delete all but the newest ones.

    Args:
        folder: Folder of the checkpoints.
        train_state: State to save.
        trial: Identifier of the trial.
        after: Last evaluated step; −1 for none.
        keep: Number of checkpoints to keep.
        **extra: Further fields of the manifest.
    """
    step = int(train_state.state.step.reshape(-1)[0])
    name = _name(step, after)
    plain = {
        n: leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
        for n, leaf in trees.named_leaves(train_state)
    }
    content = save_tensors(plain)
    with log_time("Wrote checkpoint %s, %.1f MiB", folder / name, len(content) / 2**20):
        write_atomic(folder / f"{name}.safetensors", content)
    manifest = {"trial": trial, "step": step, "after": after, "sha256": digest(content), "bytes": len(content), **extra}
    write_atomic(folder / f"{name}.json", canonical_json(manifest).encode())

    # Checkpoints of later steps are damaged: otherwise the run would have resumed from them.
    older = [old for old in _names(folder) if old < name and (folder / f"{old}.json").exists()]
    kept = [name, *older[: keep - 1]]
    for path in _files(folder):
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def delete(folder: Path) -> None:
    """Delete all checkpoints of a run, and their folder."""
    for path in _files(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it contains other files
        folder.rmdir()


def load(
    folder: Path, template: TrainState, trial: str, former: Sequence[str] = ()
) -> tuple[TrainState, dict[str, Any]] | None:
    """Read the newest valid checkpoint.

    Args:
        folder: Folder of the checkpoints.
        template: State with the expected names, shapes and dtypes.
        trial: Identifier of the trial.
        former: Identifiers that the trial had before it was extended.

    Returns:
        The state and the manifest; None if no checkpoint was ever finished.

    Raises:
        IntegrityError: There are checkpoints, but all of them are damaged.
    """
    if not folder.exists():
        return None
    remove_temporary(folder)
    faults, damaged = [], False
    for name in _names(folder):
        manifest = folder / f"{name}.json"
        try:
            found = _read(manifest, template, (trial, *former))
        except (PogmError, OSError, KeyError, TypeError, ValueError, SafetensorError) as fault:
            unfinished = not manifest.exists()  # the process was killed before it wrote the manifest
            faults.append(f"{name}.safetensors: {'it has no manifest' if unfinished else fault}")
            damaged = damaged or not unfinished
            continue
        log.info("Read checkpoint %s", folder / name)
        _warn(folder, faults, f"resuming from step {found[1]['step']}")
        return found
    if damaged:
        raise IntegrityError(
            f"Expected a valid checkpoint in {folder}; found none: {'; '.join(faults)}. "
            f"Restore them from a copy, or delete {folder.parent} to start this run again."
        )
    _warn(folder, faults, "starting again")
    return None


def _warn(folder: Path, faults: list[str], then: str) -> None:
    if faults:
        text = f"Skipped damaged checkpoints in {folder} ({'; '.join(faults)}); {then}."
        warnings.warn(text, CheckpointWarning, stacklevel=3)


def _name(step: int, after: int) -> str:
    """Return the name of a checkpoint. Names sort by age.

    There can be two checkpoints of one step: stopped before its evaluation, and saved after it. They have different
    names, so the tensors of an existing manifest are never replaced.
    """
    return f"{step:08d}-{after + 1:08d}"


def newest_step(folder: Path) -> int:
    """Return the number of rounds of the newest checkpoint with a manifest; 0 if there is none."""
    return int(newest_name(folder).split("-")[0] or 0)


def newest_name(folder: Path) -> str:
    """Return the name of the newest checkpoint with a manifest, which has its step; an empty text if there is none."""
    return max((path.stem for path in folder.glob("*-*.json")), default="")


def _names(folder: Path) -> list[str]:
    """Return the names of all checkpoints, valid or not, the newest first."""
    return sorted({path.stem for path in _files(folder)}, reverse=True)


def _files(folder: Path) -> list[Path]:
    """Return the files of all checkpoints, each manifest before its tensors."""
    return sorted(path for path in folder.glob("*") if path.suffix in (".json", ".safetensors"))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint.

    Raises:
        ValueError: It is not JSON, or does not have the form `MANIFEST`.
    """
    manifest: dict[str, Any] = read_json(path)
    check_form(manifest, MANIFEST, path.name)
    return manifest


def _read(path: Path, template: TrainState, trials: Sequence[str]) -> tuple[TrainState, dict[str, Any]]:
    manifest = read_manifest(path)
    if manifest["trial"] not in trials:
        raise IntegrityError(f"it belongs to trial {manifest['trial']}, not {trials[0]}")
    if _name(manifest["step"], manifest["after"]) != path.stem:
        raise IntegrityError(f"its manifest is of step {manifest['step']}, evaluated up to {manifest['after']}")
    content = read_regular(path.with_suffix(".safetensors"), manifest["bytes"])
    if len(content) != manifest["bytes"] or digest(content) != manifest["sha256"]:
        raise IntegrityError(f"its SHA-256 is not the manifest's ({len(content)} of {manifest['bytes']} bytes)")
    return fill_template(template, load_tensors(content)), manifest


def fill_template(template: TrainState, tensors: dict[str, Tensor]) -> TrainState:
    """Return a state with the structure of the template and the tensors of a file.

    The running totals are not compared with the template, because their names depend on the metrics so far.

    Raises:
        IntegrityError: The tensors differ from the template in name, shape or dtype.
    """
    device = template.state.step.device
    totals: dict[str, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith("totals/")]:
        metric, _, kind = name.removeprefix("totals/").rpartition("/")  # the name of a metric may contain a slash
        totals.setdefault(metric, {})[kind] = tensors.pop(name).to(device)

    expected = dict(trees.named_leaves(template._replace(totals={})))
    differences = sorted(expected.keys() ^ tensors.keys())
    differences += [n for n in expected.keys() & tensors.keys() if not _is_same_type(expected[n], tensors[n])]
    if differences:
        raise IntegrityError(f"these tensors differ from the run's in name, shape or type: {', '.join(differences)}")
    names = iter(expected)
    found = trees.map_leaves(lambda leaf: tensors[next(names)].to(leaf.device), template._replace(totals={}))
    params = found.state.params
    state = found.state._replace(params=flatten(params) if isinstance(template.state.params, FlatParams) else params)
    return TrainState(state, found.modifiers, found.probe, rename_metrics(totals))


def _is_same_type(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype
