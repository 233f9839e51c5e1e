"""Provenance of a run, and the record of an evaluation: both describe the session that trains it."""

import platform
import warnings
from typing import Any

import torch

import pogm
from pogm._system.commit import find_commit
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.options import RunOptions
from pogm.core.plugins import describe_packages, registered_name
from pogm.engine.sampling import SPLITS
from pogm.engine.session import Session
from pogm.engine.trainer import Evaluation
from pogm.models import network_package


class TrajectoryWarning(UserWarning):
    """The training of a domain produced NaN or infinity, and the algorithm skipped the round."""


def provenance(options: RunOptions, session: Session) -> dict[str, Any]:
    """Return the facts that can affect the numbers of a run: versions, device, options, data.

    ``shared_training`` is the number of runs that were trained as one; their times and memory are those of all of them.
    """
    on_gpu, commit = session.device.type == "cuda", find_commit()
    task = session.tasks[0]
    return {
        "pogm": pogm.__version__,
        **({"commit": commit} if commit else {}),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(session.device) if on_gpu else "cpu",
        "threads": options.threads,
        "processes": options.launch.world_size if options.launch else 1,
        "data": str(options.data.resolve()) if options.data else None,
        "weights": str(options.weights) if options.weights else None,
        "captured": session.captured,
        "compiled": session.compiles,
        "trajectories": session.trajectory_storage,
        "micro_batch": options.engine.micro_batch,
        "deterministic": options.engine.deterministic,
        **({"shared_training": len(task.runs)} if task.shared_by else {}),
        "images": {split: session.segments[index :: len(SPLITS)] for index, split in enumerate(SPLITS)},  # by domain
        **task.dataset.describe_data(options.data),
    }


def plugin_facts(trial: Trial) -> dict[str, Any]:
    """Return the packages of plug-ins that a trial uses, as a fact of its provenance; nothing without one."""
    classes = (registered_name(type(part)) for part in (trial.algorithm, *trial.modifiers, trial.dataset))
    network = trial.training.network
    packages = describe_packages([*classes, network]) | network_package(network)
    return {"plugins": packages} if packages else {}


def make_record(trial: Trial, session: Session, evaluation: Evaluation, row: int = 0) -> dict[str, Any]:
    """Return one line of ``records.jsonl`` for the trial in row ``row`` of a session."""
    scores, metrics = evaluation.scores[row], evaluation.metrics[row]
    count = len(SPLITS)  # scores are ordered by domain, then by split
    _warn_of_nonfinite_domains(trial, metrics.get("nonfinite"), evaluation.step)
    smallest = min(session.segments[::count])  # images of the smallest training split: DomainBed's definition of epoch
    memory = torch.cuda.max_memory_allocated(session.device) / 2**30 if session.device.type == "cuda" else 0.0
    rounds = evaluation.rounds[row]
    return {
        "step": evaluation.step,
        "epoch": evaluation.step * trial.training.batch_size / smallest,
        **{name: {split: found[i::count] for i, split in enumerate(SPLITS)} for name, found in scores.items()},
        "metrics": metrics,
        "seconds_per_step": evaluation.seconds_per_step,
        "memory_gb": memory,
        "status": "diverged" if evaluation.diverged[row] else "ok",
        **({} if rounds is None else {"rounds": rounds}),
    }


def _warn_of_nonfinite_domains(trial: Trial, shares: Any, step: int) -> None:
    """Warn with the names of the domains whose trajectories were not finite, given the share of such rounds."""
    names = [trial.dataset.domains[number] for number in trial.train_domains]
    bad = [f"{name} ({share:.0%} of rounds)" for name, share in zip(names, shares or [], strict=False) if share > 0]
    if bad:
        text = f"Rounds with a trajectory that is not finite were skipped up to step {step}: domain {', '.join(bad)}."
        warnings.warn(text, TrajectoryWarning, stacklevel=2)
