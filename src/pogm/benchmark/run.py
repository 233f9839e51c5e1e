"""One trial in one folder: started, resumed, stopped, finished."""

import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pogm
from pogm.benchmark.folder import check_owner, describe, make_folder
from pogm.benchmark.guards import Stop, failure_noted, memory_explained, stoppable, threads
from pogm.benchmark.records import FINAL, append_record, is_final, read_records, record_line
from pogm.benchmark.trial import Trial
from pogm.core.errors import DivergedError, IntegrityError
from pogm.core.files import locked, remove_temporary, write_whole
from pogm.engine import checkpoint
from pogm.engine.data import SPLITS
from pogm.engine.session import Engine, Session
from pogm.engine.steps import Progress
from pogm.engine.train import Evaluation, final, train
from pogm.networks.weights import PLACE
from pogm.trackers import check_trackers
from pogm.trackers.tracking import Tracking

RECORDS = "records.jsonl"


@dataclass(frozen=True)
class Settings:
    """How a run is carried out; none of it is part of what it computes."""

    data: Path | None = None
    engine: Engine = field(default_factory=Engine)
    threads: int = 1  # of a CPU; more are faster on large networks, and round differently
    checkpoint_seconds: float = 30.0  # between checkpoints, at least
    weights: Path | None = None  # the file of the network's first weights, or its folder
    trackers: tuple[str, ...] = ()  # by name, such as tensorboard

    def __post_init__(self) -> None:
        check_trackers(self.trackers)

    def enter(self) -> None:
        """Let this process find what it needs."""
        if self.weights is not None:
            os.environ[PLACE] = str(self.weights)


class TrajectoryWarning(UserWarning):
    """Some domain's training left the finite numbers, and the algorithm left its update out."""


def run(
    trial: Trial,
    folder: Path,
    settings: Settings | None = None,
    on_evaluation: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """Run a trial in a folder; go on where an earlier run of the same trial stopped; do nothing if it is done."""
    settings = settings or Settings()
    settings.enter()
    check_owner(folder, trial)
    if (folder / "done").exists():
        return
    with threads(settings.threads), stoppable() as stopped:
        with memory_explained(trial):
            session = Session([trial.task(settings.data)], settings.engine)  # reads the data before anything is written
        make_folder(folder)
        with locked(folder):
            check_owner(folder, trial)  # again: another run may have come before us
            remove_temporary(folder)
            describe(folder, trial, provenance(settings, session))  # from here on, the folder is ours
            with failure_noted(folder), memory_explained(trial), Tracking(settings.trackers, folder) as tracking:
                _train(trial, folder, settings, session, stopped, tracking, on_evaluation)


def _train(
    trial: Trial,
    folder: Path,
    settings: Settings,
    session: Session,
    stopped: Stop,
    tracking: Tracking,
    on_evaluation: Callable[[dict[str, Any]], None],
) -> None:
    after = _restore(folder, session, trial)
    for before in read_records(folder / RECORDS):  # which trackers may have, or not
        tracking.record(before)
    saved = time.monotonic()
    for evaluation in train(session, trial.schedule, after=after, stop=lambda: stopped.signal is not None):
        if evaluation is None:
            save(folder, session.progress, trial, after)
            raise stopped.error(folder)
        record = record_of(trial, session, evaluation)
        append_record(folder / RECORDS, record)
        tracking.record(record)
        on_evaluation(record)
        after = evaluation.step
        if evaluation.diverged[0]:
            raise diverged(folder, after)
        if time.monotonic() - saved >= settings.checkpoint_seconds and after < trial.steps - 1:
            save(folder, session.progress, trial, after)
            saved = time.monotonic()
    save(folder, session.progress, trial, after)
    for evaluation in final(session):
        record = record_of(trial, session, evaluation) | {FINAL: True}
        append_record(folder / RECORDS, record)
        tracking.record(record)
        on_evaluation(record)
    write_whole(folder / "done", b"done\n")


def diverged(folder: Path, step: int) -> DivergedError:
    """The error for weights that have left the finite numbers."""
    return DivergedError(
        f"Expected finite weights; found NaN or infinity in those of {folder} at step {step}. "
        "A smaller learning rate (--set lr=...) is the usual cure."
    )


def provenance(settings: Settings, session: Session) -> dict[str, Any]:
    """What made the numbers of a run."""
    on_gpu = session.device.type == "cuda"
    return {
        "pogm": pogm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(session.device) if on_gpu else "cpu",
        "threads": settings.threads,
        "data": str(settings.data.resolve()) if settings.data else None,
        "weights": str(settings.weights) if settings.weights else None,
        "captured": on_gpu and settings.engine.capture,
        **session.tasks[0].dataset.found(settings.data),
    }


def _restore(folder: Path, session: Session, trial: Trial) -> int:
    """Put the last checkpoint into the session; the last step that was evaluated, or −1."""
    after = -1
    found = checkpoint.load(folder / "checkpoints", session.progress, trial.id)
    if found is not None:
        session.progress, manifest = found
        after = manifest["after"]
    records = {record["step"]: record for record in read_records(folder / RECORDS) if not is_final(record)}
    kept = [point for point in trial.schedule.points() if point <= after]
    missing = [point for point in kept if point not in records]
    if missing:
        raise IntegrityError(
            f"Expected the evaluations up to step {after} in {folder / RECORDS}; found none of step "
            f"{', '.join(map(str, missing))}. Restore the file from a copy, or delete {folder} to start again."
        )
    # What lies after the checkpoint will be computed, and written, again.
    write_whole(folder / RECORDS, b"".join(record_line(records[point]) for point in kept))
    return after


def save(folder: Path, progress: Progress, trial: Trial, after: int) -> None:
    """Write a checkpoint of a trial whose last evaluation was after step ``after``."""
    versions = {"pogm": pogm.__version__, "torch": torch.__version__}
    keep = 1 if after == trial.steps - 1 else checkpoint.KEPT  # at the end, one: a sweep has hundreds of runs
    checkpoint.save(folder / "checkpoints", progress, trial=trial.id, after=after, keep=keep, **versions)


def record_of(trial: Trial, session: Session, evaluation: Evaluation, row: int = 0) -> dict[str, Any]:
    """One line of records.jsonl, of one trial of a session. Segments come domain by domain, split by split."""
    accuracies, metrics = evaluation.accuracies[row], evaluation.metrics[row]
    count = len(SPLITS)
    _report_nonfinite(trial, metrics.get("nonfinite"), evaluation.step)
    trained = min(session.segments[::count])  # images in the smallest in part, as DomainBed counts epochs
    memory = torch.cuda.max_memory_allocated(session.device) / 2**30 if session.device.type == "cuda" else 0.0
    measured = evaluation.rounds[row]
    return {
        "step": evaluation.step,
        "epoch": evaluation.step * trial.training.batch_size / trained,
        "accuracy": {split: accuracies[place::count] for place, split in enumerate(SPLITS)},
        "metrics": metrics,
        "seconds_per_step": evaluation.seconds_per_step,
        "memory_gb": memory,
        "status": "diverged" if evaluation.diverged[row] else "ok",
        **({} if measured is None else {"rounds": measured}),
    }


def _report_nonfinite(trial: Trial, shares: Any, step: int) -> None:
    """Name the domains whose trajectories were left out."""
    domains = trial.dataset.domains
    names = [domains[number] for number in trial.train_domains]
    bad = [f"{name} ({share:.0%} of rounds)" for name, share in zip(names, shares or [], strict=False) if share > 0]
    if bad:
        text = f"Trajectories that are not finite were left out up to step {step}: domain {', '.join(bad)}."
        warnings.warn(text, TrajectoryWarning, stacklevel=2)
