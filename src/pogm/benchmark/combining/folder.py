"""Folder of a combination: the same files as those of a finished run, so that tables and `pogm.load` read it.

``trial.json`` names the members. It is written after the model, and ``done`` is written last: a folder without ``done``
is computed again.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors

import pogm
from pogm._system.errors import PogmError
from pogm._system.fault_injection import fault_point
from pogm._system.files import digest, lock_folder, read_json, readable_json, remove_temporary, write_atomic
from pogm._system.saved import read_regular
from pogm.benchmark.combining.evaluation import Evaluator
from pogm.benchmark.combining.members import Group, Member
from pogm.benchmark.combining.soups import Combined
from pogm.benchmark.results.combined import COMBINATION
from pogm.benchmark.results.record_digest import DONE, RECORDS, TRIAL, RecordDigest, read_verified
from pogm.benchmark.results.record_file import record_line
from pogm.benchmark.runs.directory import SCHEMA, make_folder
from pogm.benchmark.runs.model_metrics import reported_parts, save_metrics
from pogm.benchmark.runs.selected_model import DESCRIPTION, ENSEMBLE_FORMAT, FORMAT, MODEL, WEIGHT_BYTES
from pogm.engine.sampling import SPLITS

TITLES = {  # of combinations in tables, by rule
    "uniform": "uniform soup",
    "greedy": "greedy soup",
    "logits": "ensemble",
    "probabilities": "ensemble of probabilities",
}


def is_done(folder: Path, group: Group, rule: str) -> bool:
    """Return True if the folder holds the finished combination of exactly these members."""
    if not (folder / DONE).exists():
        return False
    try:
        read_verified(folder)
        return bool(read_json(folder / TRIAL)["id"] == group.content(rule))
    except (PogmError, OSError, KeyError, TypeError):
        return False


def write_combination(folder: Path, group: Group, rule: str, found: Combined, evaluator: Evaluator) -> None:
    """Write a combined model, its scores and its members.

    Args:
        folder: Folder of the combination.
        group: All runs that were considered.
        rule: "uniform", "greedy", "logits" or "probabilities".
        found: The combined model.
        evaluator: The evaluator that it was made with.

    Raises:
        InUseError: Another process writes the folder.
    """
    make_folder(folder)
    with lock_folder(folder):
        (folder / DONE).unlink(missing_ok=True)  # first: without it, the combination is unfinished
        (folder / TRIAL).unlink(missing_ok=True)
        remove_temporary(folder)
        description = _describe(group, rule, found)
        _write_model(folder / MODEL, found, description)
        record = _record(found, evaluator)
        fault_point("combination")
        write_atomic(folder / TRIAL, readable_json(_trial_file(group, rule, description, evaluator)))
        write_atomic(folder / RECORDS, record_line(record))
        reported = [part for part in reported_parts(evaluator.trial) if part in found.predictions]
        save_metrics(folder, evaluator.trial, description, {part: found.predictions[part] for part in reported})
        write_atomic(folder / DONE, RecordDigest(record_line(record)).done())


def _write_model(folder: Path, found: Combined, description: dict[str, Any]) -> None:
    """Write the weights, then the description; delete the weights of an older combination."""
    folder.mkdir(exist_ok=True)
    remove_temporary(folder)
    if found.tensors is not None:
        content = save_tensors({name: leaf.contiguous() for name, leaf in found.tensors.items()})
        description["weights"] = _write_weights(folder, "weights.safetensors", content)
    else:
        description["members"] = [
            _write_weights(folder, f"weights-{number:04d}.safetensors", _read_file(member))
            for number, member in enumerate(found.kept)
        ]
        description["weights"] = description["members"][0]
    write_atomic(folder / DESCRIPTION, readable_json(description))
    used = {entry["file"] for entry in description.get("members", [description["weights"]])}
    for path in folder.glob("weights*.safetensors"):
        if path.name not in used:
            path.unlink(missing_ok=True)


def _write_weights(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    write_atomic(folder / name, content)
    return {"file": name, "sha256": digest(content), "bytes": len(content)}


def _read_file(member: Member) -> bytes:
    member.read_weights()  # compares it with its digest
    return read_regular(member.run.folder / MODEL / Path(member.description["weights"]["file"]).name, WEIGHT_BYTES)


def _describe(group: Group, rule: str, found: Combined) -> dict[str, Any]:
    """Return the description of the model, without its files."""
    first = found.kept[0]
    step = max(int(member.description["selection"]["step"]) for member in found.kept)
    inherited = {name: value for name, value in first.description.items() if name not in ("weights", "temperature")}
    return {
        **inherited,
        "format": FORMAT if found.tensors is not None else ENSEMBLE_FORMAT,
        "algorithm": label_of(group, rule),
        "selection": {"rule": TITLES[rule], "step": step, "validation": _finite(found.validation)},
        "trial_id": group.content(rule),
        "torch": torch.__version__,
        COMBINATION: describe_members(group, rule, found),
    }


def describe_members(group: Group, rule: str, found: Combined) -> dict[str, Any]:
    """Return the rule, and for all runs that were considered: id, validation score, cost, and if they are kept."""
    kept = {member.run.id for member in found.kept}
    scores = found.members or {}
    listed = [
        member.to_json() | {"kept": member.run.id in kept, "validation": _finite(scores.get(member.run.id, math.nan))}
        for member in group.members
    ]
    return {
        "rule": TITLES[rule],
        **({"mean": rule} if found.tensors is None else {}),
        "kept": len(kept),
        "considered": len(listed),
        "seconds": group.seconds,
        "members": listed,
    }


def _record(found: Combined, evaluator: Evaluator) -> dict[str, Any]:
    """Return the line of ``records.jsonl``. The training images are not predicted, so their scores are unknown."""
    scores = evaluator.score(found.predictions)
    domains = range(len(evaluator.trial.dataset.domains))
    values = {split: [scores.values.get((number, split)) for number in domains] for split in SPLITS}
    step = max(int(member.description["selection"]["step"]) for member in found.kept)
    return {"step": step, scores.name: values, "metrics": {}, "status": "ok"}


def _trial_file(group: Group, rule: str, description: Mapping[str, Any], evaluator: Evaluator) -> dict[str, Any]:
    """Return the content of ``trial.json``: what all members have in common."""
    first, trial = group.members[0], group.trial.to_json()
    facts = dict(description[COMBINATION])
    members = facts.pop("members")
    device = evaluator.session.device
    return {
        "schema": SCHEMA,
        "id": group.content(rule),
        "label": label_of(group, rule),
        "domains": list(first.run.domains),
        "num_classes": group.trial.dataset.num_classes,
        "trial": {
            "dataset": trial["dataset"],
            "algorithm": {"name": trial["algorithm"]["name"]},
            "modifiers": [{"name": modifier["name"]} for modifier in trial["modifiers"]],
            "training": {name: trial["training"][name] for name in ("network", "weights")},
            "test_domains": trial["test_domains"],
            "hparams_seed": 0,
            "trial_seed": group.trial_seed,
            COMBINATION: facts,
        },
        "members": [member["run"] for member in members if member["kept"]],
        "considered": [member["run"] for member in members],
        "provenance": {
            "pogm": pogm.__version__,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "images": evaluator.images,
        },
    }


def label_of(group: Group, rule: str) -> str:
    """Return the label of a combination in tables, such as "ERM, greedy soup"."""
    return f"{group.label}, {TITLES[rule]}{' of all trials' if group.pooled else ''}"


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
