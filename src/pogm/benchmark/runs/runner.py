"""One trial in one folder: started, resumed, stopped, finished."""

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pogm
from pogm._system.determinism import fix_cublas_workspace
from pogm._system.errors import DivergedError, IntegrityError
from pogm._system.files import locked, remove_temporary, write_whole
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import FINAL, append_record, is_final, read_records, record_line
from pogm.benchmark.runs.context import Stop, failure_noted, memory_explained, stoppable, threads
from pogm.benchmark.runs.directory import check_owner, describe, make_folder
from pogm.data.images.index import forget_scans, reuse_scans
from pogm.distributed.world import Launch, SingleProcess, World, connect
from pogm.engine import checkpoint
from pogm.engine.sampling import SPLITS
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import Evaluation, final, train
from pogm.engine.vectorise import TrainState
from pogm.models.weights import WEIGHTS_VARIABLE
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
    launch: Launch | None = None  # by torchrun, as one of many processes

    def __post_init__(self) -> None:
        check_trackers(self.trackers)

    def enter(self) -> None:
        """Let this process find what it needs."""
        if self.weights is not None:
            os.environ[WEIGHTS_VARIABLE] = str(self.weights)
        if self.engine.deterministic and self.engine.torch_device().type == "cuda":
            fix_cublas_workspace()  # before the processes of a run join, which uses CUDA

    @contextmanager
    def joined(self) -> Iterator[World | SingleProcess]:
        """The processes of the run, while it lasts."""
        if self.launch is None:
            yield SingleProcess()
            return
        with connect(self.launch, self.engine.torch_device()) as world:
            yield world


class TrajectoryWarning(UserWarning):
    """Some domain's training left the finite numbers, and the algorithm left its update out."""


@reuse_scans()
def run(
    trial: Trial,
    folder: Path,
    settings: Settings | None = None,
    on_evaluation: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """Run a trial in a folder; go on where an earlier run of the same trial stopped; do nothing if it is done."""
    settings = settings or Settings()
    settings.enter()
    with threads(settings.threads), stoppable() as stopped, settings.joined() as world:
        if world.run_on_first(lambda: _is_done(folder, trial)):
            return
        with memory_explained(trial):  # reads the data before anything is written
            session = Session(
                [trial.task(settings.data)],
                settings.engine.for_steps(trial.steps),
                world if isinstance(world, World) else None,
            )
        with ExitStack() as held:
            held.callback(session.close)
            world.run_on_first(lambda: _take(folder, trial, settings, session, held))
            forget_scans()  # training does not need them
            with memory_explained(trial), Tracking(settings.trackers if world.is_first else (), folder) as tracking:
                _train(trial, folder, settings, session, world, stopped, tracking, on_evaluation)


def _is_done(folder: Path, trial: Trial) -> bool:
    check_owner(folder, trial)
    return (folder / "done").exists()


def _take(folder: Path, trial: Trial, settings: Settings, session: Session, held: ExitStack) -> None:
    """Make the folder this run's for as long as it is held."""
    make_folder(folder)
    held.enter_context(locked(folder))
    check_owner(folder, trial)  # again: another run may have come before us
    remove_temporary(folder)
    describe(folder, trial, provenance(settings, session))  # from here on, the folder is ours
    held.enter_context(failure_noted(folder))


def _train(
    trial: Trial,
    folder: Path,
    settings: Settings,
    session: Session,
    world: World | SingleProcess,
    stopped: Stop,
    tracking: Tracking,
    on_evaluation: Callable[[dict[str, Any]], None],
) -> None:
    """Of many processes, all train, and the first one writes."""

    def note(evaluation: Evaluation, **more: Any) -> None:
        if world.is_first:
            record = record_of(trial, session, evaluation) | more
            append_record(folder / RECORDS, record)
            tracking.record(record)
            on_evaluation(record)

    def due() -> bool:
        return time.monotonic() - saved >= settings.checkpoint_seconds and after < trial.steps - 1

    def keep() -> None:
        train_state = session.gather_state()
        world.run_on_first(lambda: save(folder, train_state, trial, after))

    after = _restore(folder, session, trial, world)
    for before in read_records(folder / RECORDS) if world.is_first else ():  # which trackers may have, or not
        tracking.record(before)
    saved = time.monotonic()
    for evaluation in train(session, trial.schedule, after=after, stop=_stop(stopped, world)):
        if evaluation is None:
            keep()
            raise stopped.error(folder)
        note(evaluation)
        after = evaluation.step
        if evaluation.diverged[0]:
            raise diverged(folder, after)
        if world.run_on_first(due):  # by one clock
            keep()
            saved = time.monotonic()
    keep()
    for evaluation in final(session):
        note(evaluation, **{FINAL: True})
    world.run_on_first(lambda: write_whole(folder / "done", b"done\n"))


def _stop(stopped: Stop, world: World | SingleProcess) -> Callable[[], bool]:
    """Whether to stop, after every round; many processes stop after the same one."""
    agreed = world.share_stop_signal(lambda: stopped.signal or 0)

    def stop() -> bool:
        signal = agreed()
        stopped.signal = signal or stopped.signal
        return signal > 0

    return stop


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
        "processes": settings.launch.world_size if settings.launch else 1,
        "data": str(settings.data.resolve()) if settings.data else None,
        "weights": str(settings.weights) if settings.weights else None,
        "captured": session.captured,
        "compiled": session.compiles,
        "trajectories": session.trajectory_storage,
        "deterministic": settings.engine.deterministic,
        **session.tasks[0].dataset.describe_data(settings.data),
    }


def _restore(folder: Path, session: Session, trial: Trial, world: World | SingleProcess) -> int:
    """Put the last checkpoint into the session; the last step that was evaluated, or −1."""
    found: list[TrainState] = []

    def read() -> tuple[int, bool]:
        loaded = checkpoint.load(folder / "checkpoints", session.state_template(), trial.id)
        found.extend(loaded[:1] if loaded else [])
        after = loaded[1]["after"] if loaded else -1
        _restore_records(folder, trial, after)
        return after, loaded is not None

    after, is_there = world.run_on_first(read)
    if is_there:
        session.restore(found[0] if found else None)
    return after


def _restore_records(folder: Path, trial: Trial, after: int) -> None:
    """Keep the records up to the checkpoint's."""
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


def save(folder: Path, train_state: TrainState, trial: Trial, after: int) -> None:
    """Write a checkpoint of a trial whose last evaluation was after step ``after``."""
    versions = {"pogm": pogm.__version__, "torch": torch.__version__}
    keep = 1 if after == trial.steps - 1 else checkpoint.KEPT  # at the end, one: a sweep has hundreds of runs
    checkpoint.save(folder / "checkpoints", train_state, trial=trial.id, after=after, keep=keep, **versions)


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
