"""A checkpoint is a ``Progress`` on disk: tensors in one file, and a manifest that vouches for it, written last."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pogm.core import trees
from pogm.core.errors import IntegrityError, PogmError
from pogm.core.files import canonical_json, digest, read_json, remove_temporary, write_whole
from pogm.engine.steps import Progress

KEPT = 2


class CheckpointWarning(UserWarning):
    """A checkpoint was damaged; an older one serves."""


def save(folder: Path, progress: Progress, facts: dict[str, Any]) -> None:
    """Write a checkpoint; ``facts`` (the trial, the last evaluation) go into its manifest."""
    folder.mkdir(exist_ok=True)
    step = int(progress.state.step.reshape(-1)[0])
    content = save_tensors({name: leaf.detach().cpu().clone() for name, leaf in trees.named(progress)})
    write_whole(folder / f"{step:08d}.safetensors", content)
    manifest = {"step": step, "sha256": digest(content), "bytes": len(content), **facts}
    write_whole(folder / f"{step:08d}.json", canonical_json(manifest).encode())
    for old in _manifests(folder)[KEPT:]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(folder: Path, like: Progress, trial: str) -> tuple[Progress, dict[str, Any]] | None:
    """The newest checkpoint that is whole, shaped like ``like``, with its manifest; None if there was never one."""
    if not folder.exists():
        return None
    remove_temporary(folder)
    faults = []
    for path in _manifests(folder):
        try:
            progress, manifest = _read(path, like, trial)
        except (PogmError, OSError, KeyError, TypeError, ValueError) as fault:
            faults.append(f"{path.with_suffix('.safetensors').name}: {fault}")
            continue
        if faults:
            warnings.warn(
                f"Damaged checkpoints in {folder} were passed over ({'; '.join(faults)}); going on from step "
                f"{manifest['step']}.",
                CheckpointWarning,
                stacklevel=2,
            )
        return progress, manifest
    if faults:
        raise IntegrityError(
            f"Expected a whole checkpoint in {folder}; found none: {'; '.join(faults)}. "
            "Restore the folder from a copy, or delete it to start this run again."
        )
    return None


def _manifests(folder: Path) -> list[Path]:
    """Newest first. Tensors without a manifest do not count: their writer was killed."""
    return sorted(folder.glob("*.json"), reverse=True)


def _read(path: Path, like: Progress, trial: str) -> tuple[Progress, dict[str, Any]]:
    manifest = read_json(path)
    if manifest["trial"] != trial:
        raise IntegrityError(f"it belongs to trial {manifest['trial']}, not {trial}")
    content = path.with_suffix(".safetensors").read_bytes()
    if len(content) != manifest["bytes"] or digest(content) != manifest["sha256"]:
        raise IntegrityError(f"its SHA-256 is not the manifest's ({len(content)} of {manifest['bytes']} bytes)")
    return _filled(like, load_tensors(content)), manifest


def _filled(like: Progress, tensors: dict[str, Tensor]) -> Progress:
    """The tree of ``like`` with the tensors of a file; the running totals are as the file has them."""
    device = like.diverged_at.device
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
    filled = trees.map_leaves(lambda leaf: tensors[next(names)].to(device), like._replace(totals={}))
    result: Progress = filled._replace(totals=totals)
    return result


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype


def equal(left: Progress, right: Progress) -> bool:
    """Whether two are the same to the last bit."""
    mine, theirs = dict(trees.named(left)), dict(trees.named(right))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
