"""The runner: train a batch of trials, write their records and checkpoints, resume and finish them.

One trial is a batch of one. Each trial has a run directory with these files:

- ``trial.json``: the trial and its provenance (device, versions, options)
- ``records.jsonl``: one line per evaluation
- ``checkpoints/``: the last checkpoints
- ``model/``: the weights of the selected step, and their description (see ``selected_model.py``)
- ``metrics.json``: metrics of that model, written when the run ends (see ``model_metrics.py``)
- ``failed.json``: the reason if the run failed
- ``done``: marks a finished run, and has the digest of its records; written last
"""

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import pogm
from pogm._system.determinism import fix_cublas_workspace
from pogm._system.errors import DivergedError, IntegrityError, InUseError, PogmError
from pogm._system.files import lock_folder, remove_temporary, write_atomic
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import (
    DONE,
    RECORDS,
    RecordDigest,
    check_records,
    read_content,
    read_verified,
)
from pogm.benchmark.results.records import (
    FINAL,
    Record,
    append_record,
    is_final,
    parse_records,
    read_records,
    record_line,
)
from pogm.benchmark.runs.compile_choice import choose_compile, note_cached
from pogm.benchmark.runs.context import (
    Stop,
    catch_stop_signals,
    explain_out_of_memory,
    note_failures,
    silence_compiler_log,
    use_threads,
    write_failure,
)
from pogm.benchmark.runs.directory import check_owner, make_folder, newest_checkpoint, read_provenance, write_trial
from pogm.benchmark.runs.model_metrics import write_metrics
from pogm.benchmark.runs.selected_model import SelectedModel, describe, remove_unused_weights, validation_accuracy
from pogm.core import trees
from pogm.core.plugins import describe_packages, registered_name
from pogm.data.images.index import forget_scans, reuse_scans
from pogm.distributed.world import Launch, SingleProcess, World, connect
from pogm.engine import checkpoint
from pogm.engine.sampling import SPLITS
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import Evaluation, final, train
from pogm.engine.vectorise import TrainState
from pogm.models import network_package
from pogm.models.weights import WEIGHTS_VARIABLE
from pogm.modifiers.base import Modifier

if TYPE_CHECKING:
    from pogm.trackers.tracking import Tracking

OnRecord = Callable[[dict[str, Any]], None]
OnRound = Callable[[int], None]


@dataclass(frozen=True)
class RunOptions:
    """Options of the runner. They do not change what a trial computes."""

    data: Path | None = None  # folder of the datasets
    engine: Engine = field(default_factory=Engine)  # device, compilation, memory
    threads: int = 1  # CPU threads; more are faster for large networks, and round differently
    checkpoint_seconds: float = 30.0  # minimum time between two checkpoints
    weights: Path | None = None  # file, or folder of files, with the initial weights of networks
    trackers: tuple[str, ...] = ()  # names of experiment trackers, such as tensorboard
    launch: Launch | None = None  # rank and world size if torchrun started this process

    def __post_init__(self) -> None:
        if self.trackers:
            from pogm.trackers import check_trackers

            check_trackers(self.trackers)

    def enter(self) -> None:
        """Set the environment variables and the logging of this process, before it uses CUDA."""
        if self.weights is not None:
            os.environ[WEIGHTS_VARIABLE] = str(self.weights)
        if self.engine.compiles():
            silence_compiler_log()
        if self.engine.deterministic and self.engine.torch_device().type == "cuda":
            fix_cublas_workspace()  # before the process group, which uses CUDA, is created

    @contextmanager
    def join_processes(self) -> Iterator[World | SingleProcess]:
        """Join the processes of the run while the block runs."""
        if self.launch is None:
            yield SingleProcess()
            return
        with connect(self.launch, self.engine.torch_device()) as world:
            yield world


class UnevenBatchError(PogmError):
    """A trial cannot train in its batch, because it is at another step than the others. It can be run alone."""

    def __init__(self, folder: Path):
        super().__init__(f"Expected trials at one step for a batch; found {folder} at another. Run it alone.")


class TrajectoryWarning(UserWarning):
    """The training of a domain produced NaN or infinity, and the algorithm skipped the round."""


def run(
    trial: Trial,
    folder: Path,
    options: RunOptions | None = None,
    on_evaluation: OnRecord = lambda record: None,
    on_round: OnRound = lambda count: None,
) -> None:
    """Run one trial in a directory. Resume an earlier run of the same trial; do nothing if it is done.

    Args:
        trial: The trial.
        folder: Its run directory.
        options: Options of the runner.
        on_evaluation: Called with every new record.
        on_round: Called at the start and after every round with the number of minibatches, some of which may
            wait in the queue of the GPU.

    Raises:
        InUseError: If another process runs in the directory.
        DivergedError: If the weights or the loss become NaN or infinite, or if every round between two evaluations
            was skipped because its trajectories were.
        StoppedError: If a signal stopped the run; it left a checkpoint.
    """
    (error,) = run_batch([trial], [folder], options or RunOptions(), on_evaluation, on_round)
    if error is not None:
        raise error


@reuse_scans()
def run_batch(
    trials: Sequence[Trial],
    folders: Sequence[Path],
    options: RunOptions,
    on_record: OnRecord = lambda record: None,
    on_round: OnRound = lambda count: None,
) -> list[PogmError | None]:
    """Train trials as one batch; each has a run directory and writes what it would write alone.

    Trials resume from their checkpoints, if there are any. Several trials must be alike (see ``Task.shape``) and must
    have checkpoints of the same step, or none. If a trial of a batch diverges, the others continue. If a batch is
    stopped, every trial of it has a checkpoint, from which it can be resumed, alone or in a batch.

    Args:
        trials: The trials.
        folders: The run directory of each trial.
        options: Options of the runner.
        on_record: Called with every new record.
        on_round: Called at the start and after every round with the number of minibatches.

    Returns:
        For each trial, None if it is done, `DivergedError`, `InUseError` if another process runs it, or
        `UnevenBatchError` if it has to be run alone: it was done before, its files are damaged, or its checkpoint is of
        another step than those of the other trials.

    Raises:
        StoppedError: If a signal stopped the batch.
        PogmError: If all trials failed for the same reason, such as missing data or memory.
    """
    options.enter()
    with use_threads(options.threads), catch_stop_signals() as stop, options.join_processes() as world:
        if world.run_on_first(lambda: _are_done(folders, trials)):
            return [None] * len(trials)
        setup = stop.without_saving() if options.launch is None else nullcontext()  # ranks stop together, at a round
        with setup, explain_out_of_memory(trials[0]):  # reads the data before anything is written
            tasks = [trial.task(options.data) for trial in trials]
            session = Session(
                tasks, _choose_engine(trials, folders, options), world if isinstance(world, World) else None
            )
        with ExitStack() as resources:
            resources.callback(session.close)
            batch = _Batch(trials, folders, options, session, world, stop, on_record, on_round)
            batch.errors = world.run_on_first(lambda: batch.take_directories(resources))
            forget_scans()  # training does not need them
            with explain_out_of_memory(trials[0]):
                batch.start_trackers(resources)
                batch.train()
            return batch.errors


def _choose_engine(trials: Sequence[Trial], folders: Sequence[Path], options: RunOptions) -> Engine:
    """Return the engine with a choice for ``--compile auto``. A run that is resumed keeps its first choice."""
    known = read_provenance("compiled", folders[0]) if options.engine.compile == "auto" else None
    if known is None:
        return choose_compile(options.engine, trials[0])
    return replace(options.engine, compile="on" if known else "off")


def _are_done(folders: Sequence[Path], trials: Sequence[Trial]) -> bool:
    for folder, trial in zip(folders, trials, strict=True):
        check_owner(folder, trial)
    done = [folder for folder in folders if (folder / DONE).exists()]
    for folder in done:
        read_verified(folder)
    return len(done) == len(folders)


class _Batch:
    """Trials that train in one session, while they train. With several processes, only the first one writes."""

    def __init__(
        self,
        trials: Sequence[Trial],
        folders: Sequence[Path],
        options: RunOptions,
        session: Session,
        world: World | SingleProcess,
        stop: Stop,
        on_record: OnRecord,
        on_round: OnRound,
    ):
        self.trials, self.folders, self.options = trials, folders, options
        self.session, self.world, self.stop = session, world, stop
        self.on_record, self.on_round = on_record, on_round
        self.errors: list[PogmError | None] = [None] * len(trials)
        self.selected = [SelectedModel() for _ in trials]
        self.digests = [RecordDigest() for _ in trials]  # of the records of each trial
        self.has_final = Modifier.find_final(session.config.modifiers) is not None  # only final weights are selected
        self.facts: dict[str, Any] = {}  # provenance
        self.classes: tuple[str, ...] = ()
        self.tracking: dict[int, Tracking] = {}  # by index of the trial
        self.after = -1  # step of the last evaluation

    @property
    def active(self) -> list[int]:
        """Indices of the trials without an error: not diverged, not run by another process, not to be run alone."""
        return [row for row, error in enumerate(self.errors) if error is None]

    def take_directories(self, resources: ExitStack) -> list[PogmError | None]:
        """Lock the run directories and write their trial files; return an error for each one that is in use."""
        errors: list[PogmError | None] = []
        self.facts = provenance(self.options, self.session)
        self.classes = self.session.tasks[0].dataset.class_names(self.options.data)
        for folder in self.folders:
            make_folder(folder)
            try:
                resources.enter_context(lock_folder(folder))
                errors.append(None)
            except InUseError as error:
                errors.append(error)
        locked = [folder for folder, error in zip(self.folders, errors, strict=True) if error is None]
        first = min((newest_checkpoint(folder) for folder in locked), default="")
        for row, (trial, folder) in enumerate(zip(self.trials, self.folders, strict=True)):
            if errors[row] is not None:
                continue
            check_owner(folder, trial)  # again: another process may have used the directory before the lock
            is_done = self.session.has_trial_axis and (folder / DONE).exists()
            if is_done or newest_checkpoint(folder) != first:
                errors[row] = UnevenBatchError(folder)
                continue
            remove_temporary(folder)
            write_trial(folder, trial, self.facts)
            if not self.session.has_trial_axis:  # trials of a batch that failed as a whole may succeed alone
                resources.enter_context(note_failures(folder))
        return errors

    def start_trackers(self, resources: ExitStack) -> None:
        """Start the trackers of every active trial, if the run has any."""
        if not self.options.trackers or not self.world.is_first:
            return
        from pogm.trackers.tracking import Tracking

        for row in self.active:
            self.tracking[row] = resources.enter_context(Tracking(self.options.trackers, self.folders[row]))

    def train(self) -> None:
        """Train to the last step, or until a signal arrives, or until no trial is active."""
        if not self.active:
            return
        self.after = self._restore()
        if not self.active:
            return
        for row, tracking in self.tracking.items():
            for record in read_records(self.folders[row] / RECORDS):  # trackers ignore what they know already
                tracking.record(record)
        saved = time.monotonic()
        rounds = train(
            self.session, self.trials[0].schedule, after=self.after, stop=self._must_stop(), on_round=self.on_round
        )
        for evaluation in rounds:
            if evaluation is None:
                self._save()
                many = self.session.has_trial_axis
                raise self.stop.error(self.folders[0].parent if many else self.folders[0], many)
            if self.after < 0 and self.session.compiles and self.session.device.type == "cuda":
                note_cached(self.options.engine, self.trials)
            self.after = evaluation.step
            for row in self.active:
                record = make_record(self.trials[row], self.session, evaluation, row)
                self._write(row, record)
                if evaluation.diverged[row]:
                    self._end_diverged(row, evaluation.diverged[row])
                elif not self.has_final:
                    self._select(row, record)
            if not self.active:
                return
            if self.world.run_on_first(partial(self._is_checkpoint_due, saved)):  # by the clock of one process
                self._save()
                saved = time.monotonic()
        self._save()
        ends = final(self.session)
        for row in self.active:
            if ends:
                record = make_record(self.trials[row], self.session, ends[row])
                self._write(row, record | {FINAL: True})
                self._select(row, record)
                self.world.run_on_first(partial(self._write_model, row))
            self.world.run_on_first(partial(self._finish, row))
            if row in self.tracking:
                self.tracking[row].end("done")

    def _write(self, row: int, record: dict[str, Any]) -> None:
        if self.world.is_first:
            append_record(self.folders[row] / RECORDS, record)
            self.digests[row].add(record_line(record))
            if row in self.tracking:
                self.tracking[row].record(record)
            self.on_record(record)

    def _select(self, row: int, record: dict[str, Any]) -> None:
        """Keep the weights of a trial if this evaluation is its best so far."""
        if self.world.is_first:
            validation = validation_accuracy(record, self.trials[row])
            self.selected[row].consider(record["step"], validation, partial(self.session.predicting_tensors, row))

    def _write_model(self, row: int) -> None:
        shape = self.session.config.table.inputs.shape
        description = describe(self.trials[row], self.classes, shape[2:] if len(shape) == 4 else (), self.facts)
        self.selected[row].write(self.folders[row], description)

    def _finish(self, row: int) -> None:
        write_metrics(self.folders[row], self.trials[row], self.session, row)
        write_atomic(self.folders[row] / DONE, self.digests[row].done())

    def _end_diverged(self, row: int, reason: str) -> None:
        error = DivergedError(
            f"Expected finite weights and losses; found {reason}, in {self.folders[row]} at step {self.after}. "
            "A smaller learning rate usually helps: --set lr=..."
        )
        self.errors[row] = error
        if self.world.is_first:
            write_failure(self.folders[row], error)
        if row in self.tracking:
            self.tracking[row].end("diverged")

    def _is_checkpoint_due(self, saved: float) -> bool:
        elapsed = time.monotonic() - saved
        return elapsed >= self.options.checkpoint_seconds and self.after < self.trials[0].steps - 1

    def _save(self) -> None:
        """Write a checkpoint of every active trial."""
        whole = None if self.session.has_trial_axis else self.session.gather_state()  # all processes take part
        for row in self.active:
            state = trees.index(self.session.train_state, row) if whole is None else whole
            self.world.run_on_first(partial(self._save_trial, row, state))

    def _save_trial(self, row: int, state: TrainState) -> None:
        extra = {
            "pogm": pogm.__version__,
            "torch": torch.__version__,
            "selected": self.selected[row].to_json(),
            "records": self.digests[row].to_json(),
        }
        trial = self.trials[row]
        self._write_model(row)  # first: a checkpoint refers to it
        keep = 1 if self.after == trial.steps - 1 else checkpoint.KEPT  # a sweep has hundreds of finished runs
        folder = self.folders[row] / "checkpoints"
        checkpoint.save(folder, state, trial=trial.id, after=self.after, keep=keep, **extra)
        remove_unused_weights(self.folders[row], folder)

    def _restore(self) -> int:
        """Load the last checkpoints; return the step of their last evaluation, or −1."""
        if self.session.has_trial_axis:
            return self._restore_batch()
        states: list[TrainState] = []

        def read() -> tuple[int, bool]:
            state, manifest = self._read_checkpoint(0, self.session.state_template())
            states.extend([] if state is None else [state])
            return manifest["after"], state is not None

        after, found = self.world.run_on_first(read)
        if found:
            self.session.restore(states[0] if states else None)
        return after

    def _restore_batch(self) -> int:
        """Load the last checkpoints of the trials of a batch; return the step of their last evaluation, or −1.

        If the newest checkpoint of a trial is damaged, an older one is loaded. If a trial is then at another step
        than the first one, or if nothing can be loaded, it gets an `UnevenBatchError` and has to be run alone.
        """
        template = trees.index(self.session.train_state, 0)
        loaded: dict[int, tuple[TrainState | None, Mapping[str, Any]]] = {}
        for row in self.active:
            try:
                loaded[row] = self._read_checkpoint(row, template)
            except IntegrityError:  # concerns only this trial; it is reported when the trial is run alone
                self.errors[row] = UnevenBatchError(self.folders[row])
        if not loaded:
            return -1
        chosen, manifest = next(iter(loaded.values()))
        for row, (_, found) in loaded.items():
            if any(found.get(name) != manifest.get(name) for name in ("step", "after")):
                self.errors[row] = UnevenBatchError(self.folders[row])
        if chosen is not None:
            states = [loaded[row][0] if row in self.active else chosen for row in range(len(self.trials))]
            self.session.restore(trees.stack(states))
        return int(manifest["after"])

    def _read_checkpoint(self, row: int, template: TrainState) -> tuple[TrainState | None, Mapping[str, Any]]:
        """Read the last checkpoint of a trial and its manifest, and delete later records; None if there is none."""
        trial, folder = self.trials[row], self.folders[row]
        former = read_provenance("former_ids", folder) or ()
        state, manifest = checkpoint.load(folder / "checkpoints", template, trial.id, former) or (None, {"after": -1})
        kept, records = _restore_records(folder, trial, manifest)
        self.digests[row] = RecordDigest(kept)
        if state is not None:
            self.selected[row] = SelectedModel.restore(folder, manifest, records, trial)
        return state, manifest

    def _must_stop(self) -> Callable[[], bool]:
        """Return a function to call after every round: True after a stop signal, in all processes at the same round."""
        agreed = self.world.share_stop_signal(lambda: self.stop.signal or 0)

        def must_stop() -> bool:
            number = agreed()
            self.stop.signal = number or self.stop.signal
            return number > 0

        return must_stop


def provenance(options: RunOptions, session: Session) -> dict[str, Any]:
    """Return the facts that can affect the numbers of a run: versions, device, options, data."""
    on_gpu = session.device.type == "cuda"
    task = session.tasks[0]
    classes = (registered_name(type(part)) for part in (task.algorithm, *task.modifiers, task.dataset))
    packages = describe_packages([*classes, task.training.network]) | network_package(task.training.network)
    return {
        "pogm": pogm.__version__,
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
        "images": {split: session.segments[index :: len(SPLITS)] for index, split in enumerate(SPLITS)},  # by domain
        **({"plugins": packages} if packages else {}),
        **task.dataset.describe_data(options.data),
    }


def _restore_records(folder: Path, trial: Trial, manifest: Mapping[str, Any]) -> tuple[bytes, list[Record]]:
    """Delete the records after a checkpoint, which will be written again. Return the others, as bytes and parsed.

    Raises:
        IntegrityError: The records up to the checkpoint differ from what was written.
    """
    path, after = folder / RECORDS, manifest["after"]
    content = read_content(path)
    kept = check_records(path, content, manifest["records"]) if "records" in manifest else None
    found = parse_records(content, path)  # warns about a line that a killed process left incomplete
    records = {record["step"]: record for record in found if not is_final(record) and record["step"] <= after}
    if kept is None:  # no checkpoint, or one of an earlier version, which has no digest
        points = [point for point in trial.schedule.points() if point <= after]
        missing = [str(point) for point in points if point not in records]
        if missing:
            raise IntegrityError(
                f"Expected the evaluations up to step {after} in {path}; found none of step {', '.join(missing)}. "
                f"Restore the file from a copy, or delete {folder} to start again."
            )
        kept = b"".join(record_line(records[point]) for point in points)
    write_atomic(path, kept)
    return kept, list(records.values())


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
