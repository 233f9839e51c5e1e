"""A checkpoint is a ``Progress`` on disk: tensors in one file, and a manifest that vouches for it, written last."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pogm._system.errors import IntegrityError, PogmError
from pogm._system.files import canonical_json, digest, read_json, remove_temporary, write_whole
from pogm.core import trees
from pogm.core.flat_params import FlatParams, flatten
from pogm.engine.vectorise import TrainState

KEPT = 2


class CheckpointWarning(UserWarning):
    """A checkpoint was damaged; an older one serves."""


def save(folder: Path, train_state: TrainState, *, trial: str, after: int, keep: int = KEPT, **facts: Any) -> None:
    """Write a checkpoint, and keep so many. The trial, the last step evaluated and other facts go into its manifest."""
    step = int(train_state.state.step.reshape(-1)[0])
    name = _name(step, after)
    plain = {
        n: leaf.detach().cpu().clone(memory_format=torch.contiguous_format) for n, leaf in trees.named(train_state)
    }
    content = save_tensors(plain)
    write_whole(folder / f"{name}.safetensors", content)
    manifest = {"trial": trial, "step": step, "after": after, "sha256": digest(content), "bytes": len(content), **facts}
    write_whole(folder / f"{name}.json", canonical_json(manifest).encode())

    # Those that come later than this one were damaged, or we would have gone on from them.
    older = [old for old in _names(folder) if old < name and (folder / f"{old}.json").exists()]
    kept = [name, *older[: keep - 1]]
    for path in _files(folder):
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def load(folder: Path, like: TrainState, trial: str) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest whole checkpoint, shaped like ``like``, and its manifest; None if none was ever finished."""
    if not folder.exists():
        return None
    remove_temporary(folder)
    faults, damaged = [], False
    for name in _names(folder):
        manifest = folder / f"{name}.json"
        try:
            found = _read(manifest, like, trial)
        except (PogmError, OSError, KeyError, TypeError, ValueError, SafetensorError) as fault:
            unfinished = not manifest.exists()  # its writer was killed before the last word
            faults.append(f"{name}.safetensors: {'it has no manifest' if unfinished else fault}")
            damaged = damaged or not unfinished
            continue
        _warn(folder, faults, f"going on from step {found[1]['step']}")
        return found
    if damaged:
        raise IntegrityError(
            f"Expected a whole checkpoint in {folder}; found none: {'; '.join(faults)}. "
            f"Restore them from a copy, or delete {folder.parent} to start this run again."
        )
    _warn(folder, faults, "starting again")
    return None


def _warn(folder: Path, faults: list[str], then: str) -> None:
    if faults:
        text = f"Passed over damaged checkpoints in {folder} ({'; '.join(faults)}); {then}."
        warnings.warn(text, CheckpointWarning, stacklevel=3)


def _name(step: int, after: int) -> str:
    """A checkpoint's name, in order of age.

    There may be several of one step: stopped before its evaluation and saved again after it. Their names differ, so
    that tensors are never replaced under a manifest that vouches for others.
    """
    return f"{step:08d}-{after + 1:08d}"


def _names(folder: Path) -> list[str]:
    """Of all checkpoints, whole or not, the newest first."""
    return sorted({path.stem for path in _files(folder)}, reverse=True)


def _files(folder: Path) -> list[Path]:
    """Ours, each manifest before its tensors."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))


def _read(path: Path, like: TrainState, trial: str) -> tuple[TrainState, dict[str, Any]]:
    manifest = read_json(path)
    if manifest["trial"] != trial:
        raise IntegrityError(f"it belongs to trial {manifest['trial']}, not {trial}")
    if _name(manifest["step"], manifest["after"]) != path.stem:
        raise IntegrityError(f"its manifest is of step {manifest['step']}, evaluated up to {manifest['after']}")
    content = path.with_suffix(".safetensors").read_bytes()
    if len(content) != manifest["bytes"] or digest(content) != manifest["sha256"]:
        raise IntegrityError(f"its SHA-256 is not the manifest's ({len(content)} of {manifest['bytes']} bytes)")
    return filled(like, load_tensors(content)), manifest


def filled(like: TrainState, tensors: dict[str, Tensor]) -> TrainState:
    """The tree of ``like`` with the tensors of a file; the running totals are as the file has them."""
    device = like.state.step.device
    totals: dict[str, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith("totals/")]:
        _, metric, kind = name.split("/")
        totals.setdefault(metric, {})[kind] = tensors.pop(name).to(device)

    wanted = dict(trees.named(like._replace(totals={})))
    differences = sorted(wanted.keys() ^ tensors.keys())
    differences += [n for n in wanted.keys() & tensors.keys() if not _alike(wanted[n], tensors[n])]
    if differences:
        raise IntegrityError(f"these tensors differ from the run's in name, shape or type: {', '.join(differences)}")
    names = iter(wanted)
    found = trees.map_leaves(lambda leaf: tensors[next(names)].to(leaf.device), like._replace(totals={}))
    params = found.state.params
    state = found.state._replace(params=flatten(params) if isinstance(like.state.params, FlatParams) else params)
    return TrainState(state, found.modifiers, found.probe, totals)


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype
