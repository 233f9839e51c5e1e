"""A batch: trials that train in one session, each with its own run directory.

``run_files.py`` writes the files of each run, and reads them when it resumes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import DivergedError, IntegrityError, InUseError, PogmError
from pogm._system.files import lock_folder, remove_temporary
from pogm.benchmark.costs.compile_choice import note_cached
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE
from pogm.benchmark.results.record_file import FINAL
from pogm.benchmark.runs.context import Stop, note_failures
from pogm.benchmark.runs.directory import check_owner, make_folder, newest_checkpoint, write_trial
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.run_files import RunFiles
from pogm.benchmark.runs.selected_model import describe
from pogm.benchmark.runs.session_facts import make_record, plugin_facts, provenance
from pogm.core import trees
from pogm.distributed.world import SingleProcess, World
from pogm.engine.session import Session
from pogm.engine.trainer import final, train
from pogm.engine.vectorise import TrainState
from pogm.modifiers.base import Modifier

OnRecord = Callable[[dict[str, Any]], None]
OnRound = Callable[[int], None]


class UnevenBatchError(PogmError):
    """A trial cannot train in its batch, because it is at another step than the others. It can be run alone."""

    def __init__(self, folder: Path):
        super().__init__(f"Expected trials at one step for a batch; found {folder} at another. Run it alone.")


class Batch:
    """Trials that train in one session, while they train. With several processes, only the first one writes.

    Args:
        trials: The trials, in the order of the runs of the session.
        folders: The run directory of each trial.
        options: Options of the runner.
        session: Session of the trials.
        world: The processes of the run.
        stop: The stop signal that this process received, if any.
        on_record: Called with every new record.
        on_round: Called at the start and after every round with the number of minibatches.
    """

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
        self.trials, self.options = trials, options
        self.runs = [RunFiles(trial, folder) for trial, folder in zip(trials, folders, strict=True)]
        self.session, self.world, self.stop = session, world, stop
        self.on_record, self.on_round = on_record, on_round
        self.errors: list[PogmError | None] = [None] * len(trials)
        # For each trial: a modifier chooses its final weights, and only these are selected.
        self.has_final = [Modifier.find_final(trial.modifiers) is not None for trial in trials]
        self.after = -1  # step of the last evaluation

    @property
    def active(self) -> list[int]:
        """Indices of the trials without an error: not diverged, not run by another process, not to be run alone."""
        return [row for row, error in enumerate(self.errors) if error is None]

    def take_directories(self, resources: ExitStack) -> list[PogmError | None]:
        """Lock the run directories and write their trial files; return an error for each one that is in use."""
        facts = provenance(self.options, self.session)
        classes = self.session.tasks[0].dataset.class_names(self.options.data)
        shape = self.session.config.table.inputs.shape
        errors: list[PogmError | None] = []
        for run in self.runs:
            make_folder(run.folder)
            try:
                resources.enter_context(lock_folder(run.folder))
                errors.append(None)
            except InUseError as error:
                errors.append(error)
        locked = [run.folder for run, error in zip(self.runs, errors, strict=True) if error is None]
        first = min(map(newest_checkpoint, locked), default="")
        for row, run in enumerate(self.runs):
            if errors[row] is not None:
                continue
            check_owner(run.folder, run.trial)  # again: another process may have used the directory before the lock
            if (run.folder / DONE).exists() or newest_checkpoint(run.folder) != first:
                errors[row] = UnevenBatchError(run.folder)
                continue
            remove_temporary(run.folder)
            own_facts = facts | plugin_facts(run.trial)
            write_trial(run.folder, run.trial, own_facts)
            run.description = describe(run.trial, classes, shape[2:] if len(shape) == 4 else (), own_facts)
            if len(self.runs) == 1:  # trials of a batch that failed as a whole may succeed alone
                resources.enter_context(note_failures(run.folder))
        return errors

    def start_trackers(self, resources: ExitStack) -> None:
        """Start the trackers of every active trial, if the run has any."""
        if not self.options.trackers or not self.world.is_first:
            return
        from pogm.trackers.tracking import Tracking

        for row in self.active:
            run = self.runs[row]
            run.tracking = resources.enter_context(Tracking(self.options.trackers, run.folder))

    def train(self) -> None:
        """Train to the last step, or until a signal arrives, or until no trial is active."""
        if not self.active:
            return
        self.after = self._restore()
        if not self.active:
            return
        for row in self.active:
            self.runs[row].track_restored()
        saved = time.monotonic()
        rounds = train(
            self.session, self.trials[0].schedule, after=self.after, stop=self._must_stop(), on_round=self.on_round
        )
        for evaluation in rounds:
            if evaluation is None:
                self._save()
                folder, many = self.runs[0].folder, len(self.runs) > 1
                raise self.stop.error(folder.parent if many else folder, many)
            if self.after < 0 and self.session.compiles and self.session.device.type == "cuda":
                note_cached(self.options.engine, self.trials)
            self.after = evaluation.step
            for row in self.active:
                record = make_record(self.trials[row], self.session, evaluation, row)
                self._write(row, record)
                if evaluation.diverged[row]:
                    self._end_diverged(row, evaluation.diverged[row])
                elif not self.has_final[row]:
                    self._select(row, record)
            if not self.active:
                return
            if self.world.run_on_first(partial(self._is_checkpoint_due, saved)):  # by the clock of one process
                self._save()
                saved = time.monotonic()
        self._save(is_last=True)
        self._finish()

    def _finish(self) -> None:
        """Evaluate and write the final weights, if a modifier has any, and finish the run of every active trial."""
        ends = final(self.session)
        for row in self.active:
            run, end = self.runs[row], ends[row]
            if end is not None:
                record = make_record(run.trial, self.session, end)
                self._write(row, record | {FINAL: True})
                self._select(row, record)
                self.world.run_on_first(run.write_model)
            self.world.run_on_first(partial(run.finish, self.session, row, self.options.keep_models))
            run.end_tracking("done")

    def _write(self, row: int, record: dict[str, Any]) -> None:
        if self.world.is_first:
            self.runs[row].append(record)
            self.on_record(record)

    def _select(self, row: int, record: dict[str, Any]) -> None:
        """Keep the weights of a trial if this evaluation is its best so far."""
        if self.world.is_first:
            self.runs[row].select(record, partial(self.session.predicting_tensors, row))

    def _end_diverged(self, row: int, reason: str) -> None:
        run = self.runs[row]
        error = DivergedError(
            f"Expected finite weights and losses; found {reason}, in {run.folder} at step {self.after}. "
            "A smaller learning rate usually helps: --set lr=..."
        )
        self.errors[row] = error
        if self.world.is_first:
            run.note_divergence(error)

    def _is_checkpoint_due(self, saved: float) -> bool:
        elapsed = time.monotonic() - saved
        return elapsed >= self.options.checkpoint_seconds and self.after < self.trials[0].steps - 1

    def _save(self, is_last: bool = False) -> None:
        """Write a checkpoint of every active trial; after the last step, only the model if none is kept."""
        kept = [row for row in self.active if self.runs[row].keeps_checkpoint or not is_last]
        whole = self.session.gather_state() if kept and len(self.runs) == 1 else None  # all processes take part
        for row in self.active:
            run = self.runs[row]
            if row in kept:
                state = self.session.run_state(row) if whole is None else whole
                self.world.run_on_first(partial(run.save, state, self.after))
            else:
                self.world.run_on_first(run.write_model)

    def _restore(self) -> int:
        """Load the last checkpoints; return the step of their last evaluation, or −1."""
        if len(self.runs) > 1:
            return self._restore_batch()
        states: list[TrainState] = []

        def read() -> tuple[int, bool]:
            state, manifest = self.runs[0].restore(self.session.state_template())
            states.extend([] if state is None else [state])
            return manifest["after"], state is not None

        after, found = self.world.run_on_first(read)
        if found:
            self.session.restore(states[0] if states else None)
        return after

    def _restore_batch(self) -> int:
        """Load the last checkpoints of the trials of a batch; return the step of their last evaluation, or −1.

        If the newest checkpoint of a trial is damaged, an older one is loaded. If a trial is then at another step
        than the first one, or if nothing can be loaded, or if it has other weights than the trials that share its
        training, it gets an `UnevenBatchError` and has to be run alone.
        """
        manifest: Mapping[str, Any] = {}
        states: dict[int, TrainState] = {}
        of_task: dict[int, TrainState] = {}  # state of the first trial of each task
        for row in self.active:
            try:
                state, found = self.runs[row].restore(self.session.run_state(row))
            except IntegrityError:  # concerns only this trial; it is reported when the trial is run alone
                self.errors[row] = UnevenBatchError(self.runs[row].folder)
                continue
            manifest = manifest or found
            same = all(found.get(name) == manifest.get(name) for name in ("step", "after"))
            if same and state is not None:
                first = of_task.setdefault(self.session.rows[row].task, state)
                same = all(map(torch.equal, trees.leaves(state.state), trees.leaves(first.state)))
                states[row] = first._replace(modifiers=state.modifiers)  # the device holds the weights once
            if not same:
                self.errors[row] = UnevenBatchError(self.runs[row].folder)
        if not manifest:
            return -1
        if states:
            self.session.restore_runs({row: state for row, state in states.items() if self.errors[row] is None})
        return int(manifest["after"])

    def _must_stop(self) -> Callable[[], bool]:
        """Return a function to call after every round: True after a stop signal, in all processes at the same round."""
        agreed = self.world.share_stop_signal(lambda: self.stop.signal or 0)

        def must_stop() -> bool:
            number = agreed()
            self.stop.signal = number or self.stop.signal
            return number > 0

        return must_stop
