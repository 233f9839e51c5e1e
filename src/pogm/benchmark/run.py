"""One trial in one folder: started, resumed, stopped, finished."""

import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import pogm
from pogm.benchmark.records import append_record, read_records
from pogm.benchmark.trial import Trial
from pogm.core.errors import DivergedError, StoppedError, UsageError
from pogm.core.files import canonical_json, locked, read_json, remove_temporary, write_whole
from pogm.datasets import dataset_class
from pogm.engine import checkpoint
from pogm.engine.data import SPLITS
from pogm.engine.session import Engine, Session
from pogm.engine.train import Evaluation, train

SCHEMA = 1


@dataclass(frozen=True)
class Settings:
    """How a run is carried out; none of it is part of what it computes."""

    data: Path | None = None
    engine: Engine = field(default_factory=Engine)
    threads: int = 1  # of a CPU; more are faster on large networks, and round differently
    checkpoint_seconds: float = 30.0  # between checkpoints, at least


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
    check_owner(folder, trial)
    if (folder / "done").exists():
        return
    with _threads(settings.threads), _stoppable() as stopped:
        session = Session([trial.task(settings.data)], settings.engine)  # reads the data before anything is written
        _train(trial, folder, settings, session, stopped, on_evaluation)


def _train(
    trial: Trial,
    folder: Path,
    settings: Settings,
    session: Session,
    stopped: "_Stop",
    on_evaluation: Callable[[dict[str, Any]], None],
) -> None:
    make_folder(folder)
    with locked(folder):
        _clear(folder)
        after = _restore(folder, session, trial)
        _describe(folder, trial, settings, session)
        saved = time.monotonic()
        for evaluation in train(session, trial.schedule, after=after, stop=lambda: stopped.signal is not None):
            if evaluation is None:
                _save(folder, session, trial, after)
                raise StoppedError(
                    f"Stopped by {signal.Signals(stopped.signal or 0).name} in {folder} with a checkpoint. "
                    f"Go on with: pogm resume {folder}",
                    exit_code=130 if stopped.signal == signal.SIGINT else 75,
                )
            record = _record(trial, session, evaluation)
            append_record(folder / "records.jsonl", record)
            on_evaluation(record)
            after = evaluation.step
            if evaluation.diverged[0] is not None:
                raise DivergedError(
                    f"Expected finite weights; found NaN or infinity, first in the loss of step {evaluation.diverged[0]} "
                    f"of {folder}. A smaller learning rate (--set lr=...) is the usual cure."
                )
            if time.monotonic() - saved >= settings.checkpoint_seconds and after < trial.steps - 1:
                _save(folder, session, trial, after)
                saved = time.monotonic()
        _save(folder, session, trial, after)
        write_whole(folder / "done", b"done\n")


def check_owner(folder: Path, trial: Trial) -> None:
    """Make sure that the folder belongs to this trial, or to nobody."""
    owner = folder / "trial.json"
    if owner.exists():
        found = read_json(owner)
        if found.get("id") != trial.id:
            raise UsageError(
                f"Expected {folder} to be new or to belong to this run; found another run's: "
                f"{_differences(found.get('trial', {}), trial.to_json())}. Choose another --out."
            )
    elif folder.exists() and any(path.name != "lock" for path in folder.iterdir()):
        raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")


def make_folder(folder: Path) -> None:
    """Make the folder, or make sure that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise UsageError(
            f"Expected to write to {folder}; found: {error.strerror}. Choose another --out, or permit writing there."
        ) from error


def load_trial(folder: Path) -> Trial:
    """The trial of a run folder."""
    path = folder / "trial.json"
    if not path.exists():
        raise UsageError(f"Expected a run folder with trial.json; found none in {folder}. Start one with: pogm run")
    content = read_json(path)
    if not isinstance(content, dict) or "trial" not in content:
        raise UsageError(f"Expected a field 'trial' in {path}; found none. It is not a file of ours.")
    trial = Trial.from_json(content["trial"])
    if content.get("id") != trial.id:
        raise UsageError(
            f"Expected {path} as `pogm run` wrote it; found it changed since (its id is {content.get('id')}, its "
            f"content's {trial.id}). Undo the change, or start a new run."
        )
    return trial


def _clear(folder: Path) -> None:
    remove_temporary(folder)
    (folder / "failed.json").unlink(missing_ok=True)


def _describe(folder: Path, trial: Trial, settings: Settings, session: Session) -> None:
    dataset = dataset_class(trial.dataset)
    description = {
        "schema": SCHEMA,
        "id": trial.id,
        "trial": trial.to_json(),
        "label": trial.label,
        "domains": list(dataset.domains),
        "num_classes": dataset.num_classes,
        "provenance": {
            "pogm": pogm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if session.device.type == "cuda" else "cpu",
            "threads": settings.threads,
            "captured": session.device.type == "cuda" and settings.engine.capture,
        },
    }
    if not (folder / "trial.json").exists():
        write_whole(folder / "trial.json", canonical_json(description).encode())


def _restore(folder: Path, session: Session, trial: Trial) -> int:
    """Put the last checkpoint into the session; the last step that was evaluated, or −1."""
    found = checkpoint.load(folder / "checkpoints", session.progress, trial.id)
    after = -1
    if found is not None:
        session.progress, manifest = found
        after = int(manifest["after"])
    records = folder / "records.jsonl"
    if records.exists():  # what lies after the checkpoint will be computed, and written, again
        kept = [record for record in read_records(records) if record["step"] <= after]
        lines = [canonical_json(record).encode() + b"\n" for record in kept]
        write_whole(records, b"".join(lines))
    return after


def _save(folder: Path, session: Session, trial: Trial, after: int) -> None:
    checkpoint.save(folder / "checkpoints", session.progress, {"trial": trial.id, "after": after})


def _record(trial: Trial, session: Session, evaluation: Evaluation) -> dict[str, Any]:
    """One line of records.jsonl. Segments come domain by domain, split by split."""
    accuracies, metrics = evaluation.accuracies[0], evaluation.metrics[0]
    count = len(SPLITS)
    _report_nonfinite(trial, metrics.get("nonfinite"), evaluation.step)
    trained = min(session.segments[::count])  # images in the smallest in part, as DomainBed counts epochs
    memory = torch.cuda.max_memory_allocated(session.device) / 2**30 if session.device.type == "cuda" else 0.0
    return {
        "step": evaluation.step,
        "epoch": evaluation.step * trial.training.batch_size / trained,
        "accuracy": {split: accuracies[place::count] for place, split in enumerate(SPLITS)},
        "metrics": metrics,
        "seconds_per_step": evaluation.seconds_per_step,
        "memory_gb": memory,
        "status": "ok" if evaluation.diverged[0] is None else "diverged",
    }


def _report_nonfinite(trial: Trial, shares: Any, step: int) -> None:
    """Name the domains whose trajectories were left out."""
    names = [n for i, n in enumerate(dataset_class(trial.dataset).domains) if i not in trial.test_domains]
    bad = [f"{name} ({share:.0%} of rounds)" for name, share in zip(names, shares or [], strict=False) if share > 0]
    if bad:
        text = f"Trajectories that are not finite were left out up to step {step}: domain {', '.join(bad)}."
        warnings.warn(text, TrajectoryWarning, stacklevel=2)


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    return "; ".join(f"{name} is {found.get(name)!r} there and {wanted[name]!r} here" for name in differing)


@dataclass
class _Stop:
    signal: int | None = None


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """Let the first SIGINT, SIGTERM or SIGUSR1 (a scheduler's warning) end the step; the second ends the process."""
    stop = _Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            sys.exit(128 + number)
        stop.signal = number

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    except ValueError:  # not the main thread: whoever owns it owns the signals
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
