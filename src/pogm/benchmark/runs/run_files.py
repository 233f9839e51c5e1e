"""Files of one run: written while it trains, read when it resumes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import pogm
from pogm._system.errors import DivergedError, IntegrityError
from pogm._system.files import write_atomic
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, RECORDS, RecordDigest, check_records, read_content
from pogm.benchmark.results.record_file import Record, append_record, is_final, parse_records, read_records, record_line
from pogm.benchmark.runs.context import write_failure
from pogm.benchmark.runs.directory import is_in_sweep
from pogm.benchmark.runs.model_metrics import write_metrics
from pogm.benchmark.runs.provenance import read_provenance
from pogm.benchmark.runs.selected_model import (
    SelectedModel,
    delete_model,
    remove_unused_weights,
    validation_accuracy,
)
from pogm.engine import checkpoint
from pogm.engine.session import Session
from pogm.engine.vectorise import TrainState

if TYPE_CHECKING:
    from pogm.trackers.tracking import Tracking


class RunFiles:
    """The files of a run: records, checkpoints, the selected model and ``done``; and its trackers.

    With several processes, only the first one reads and writes them.

    Args:
        trial: The trial.
        folder: Its run directory.
    """

    def __init__(self, trial: Trial, folder: Path):
        self.trial, self.folder = trial, folder
        self.digest = RecordDigest()  # of the records
        self.selected = SelectedModel()
        self.description: Mapping[str, Any] = {}  # of the selected model; set when the directory is locked
        self.tracking: Tracking | None = None

    @property
    def keeps_checkpoint(self) -> bool:
        """True if the run keeps its last checkpoint when it is done, because it can be extended."""
        return not is_in_sweep(self.folder, self.trial)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record, and send it to the trackers."""
        append_record(self.folder / RECORDS, record)
        self.digest.add(record_line(record))
        if self.tracking is not None:
            self.tracking.record(record)

    def select(self, record: Record, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Keep weights in memory if their evaluation is the best so far."""
        self.selected.consider(record["step"], validation_accuracy(record, self.trial), tensors)

    def save(self, state: TrainState, after: int) -> None:
        """Write a checkpoint after the evaluation of a step."""
        self.write_model()  # first: a checkpoint refers to it
        keep = 1 if after == self.trial.steps - 1 else checkpoint.KEPT
        folder = self.folder / "checkpoints"
        extra = {
            "pogm": pogm.__version__,
            "torch": torch.__version__,
            "selected": self.selected.to_json(),
            "records": self.digest.to_json(),
        }
        checkpoint.save(folder, state, trial=self.trial.id, after=after, keep=keep, **extra)
        remove_unused_weights(self.folder, folder)

    def write_model(self) -> None:
        """Write the selected model, unless it is there."""
        self.selected.write(self.folder, self.description)

    def finish(self, session: Session, row: int, keep_model: bool = True) -> None:
        """Write the metrics of the selected model, then ``done``. Delete files that no command needs.

        Args:
            session: Session of the run.
            row: Index of the trial in the session.
            keep_model: Keep the selected model. A run that is not part of a sweep always keeps it.
        """
        write_metrics(self.folder, self.trial, session, row)
        write_atomic(self.folder / DONE, self.digest.done())
        if not self.keeps_checkpoint:
            checkpoint.delete(self.folder / "checkpoints")
            remove_unused_weights(self.folder, self.folder / "checkpoints")
            if not keep_model:
                delete_model(self.folder)

    def note_divergence(self, error: DivergedError) -> None:
        """Write the reason, and end the trackers."""
        write_failure(self.folder, error)
        self.end_tracking("diverged")

    def end_tracking(self, status: str) -> None:
        """Send the final status to the trackers."""
        if self.tracking is not None:
            self.tracking.end(status)

    def track_restored(self) -> None:
        """Send the records that are in the run directory to the trackers, which ignore what they know already."""
        if self.tracking is not None:
            for record in read_records(self.folder / RECORDS):
                self.tracking.record(record)

    def restore(self, template: TrainState) -> tuple[TrainState | None, Mapping[str, Any]]:
        """Read the last checkpoint and its manifest, and delete later records.

        Args:
            template: State with the expected names, shapes and dtypes.

        Returns:
            The state, or None if there is no checkpoint; and the manifest, or one with "after" = −1.

        Raises:
            IntegrityError: All checkpoints, the records up to the last one, or the selected weights are damaged.
        """
        former = read_provenance("former_ids", self.folder) or ()
        found = checkpoint.load(self.folder / "checkpoints", template, self.trial.id, former)
        state, manifest = found or (None, {"after": -1})
        kept, records = self._read_records(manifest)
        if state is not None:
            self.selected = SelectedModel.restore(self.folder, manifest, records, self.trial)
        write_atomic(self.folder / RECORDS, kept)
        self.digest = RecordDigest(kept)
        return state, manifest

    def _read_records(self, manifest: Mapping[str, Any]) -> tuple[bytes, list[Record]]:
        """Return the records up to a checkpoint, as bytes and parsed. Later ones will be written again."""
        path, after = self.folder / RECORDS, manifest["after"]
        content = read_content(path)
        kept = check_records(path, content, manifest["records"]) if "records" in manifest else None
        found = parse_records(content, path)  # warns about a line that a killed process left incomplete
        records = {record["step"]: record for record in found if not is_final(record) and record["step"] <= after}
        if kept is None:  # no checkpoint, or one of an earlier version, which has no digest
            points = [point for point in self.trial.schedule.points() if point <= after]
            missing = [str(point) for point in points if point not in records]
            if missing:
                raise IntegrityError(
                    f"Expected the evaluations up to step {after} in {path}; found none of step {', '.join(missing)}. "
                    f"Restore the file from a copy, or delete {self.folder} to start again."
                )
            kept = b"".join(record_line(records[point]) for point in points)
        return kept, list(records.values())
