"""Like trials as one batch on one GPU, each with a folder of its own, as if it had been alone."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pogm._system.errors import InUseError
from pogm._system.files import locked, remove_temporary, write_whole
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import FINAL, append_record
from pogm.benchmark.runs.context import Stop, memory_explained, note_failure, stoppable
from pogm.benchmark.runs.directory import TRIAL, check_owner, describe, make_folder
from pogm.benchmark.runs.runner import RECORDS, Settings, diverged, provenance, record_of, save
from pogm.core import trees
from pogm.data.images.index import forget_scans, reuse_scans
from pogm.engine.engine import SMALL
from pogm.engine.session import Session
from pogm.engine.trainer import final, train
from pogm.trackers.tracking import Tracking


def groups_of(trials: Sequence[Trial], most: int) -> list[list[Trial]]:
    """Trials that can share a batch, together; in the order in which the first of each came."""
    alike: dict[str, list[list[Trial]]] = {}
    groups: list[list[Trial]] = []
    for trial in trials:
        shape = str([trial.schedule, *trial.task(None).shape().items()])
        found = alike.setdefault(shape, [])
        if not found or len(found[-1]) == (most if _small(trial) else 1):
            found.append([])
            groups.append(found[-1])
        found[-1].append(trial)
    return groups


def _small(trial: Trial) -> bool:
    """Whether its network leaves the GPU idle: one for photographs fills it, and several would not fit."""
    _, height, width = trial.task(None).transform.shape
    return height * width <= SMALL


@reuse_scans()
def run_together(trials: Sequence[Trial], root: Path, settings: Settings) -> list[str | None]:
    """Run new trials as one batch, each into ``root/<its id>``; what went wrong with each, if anything did.

    One that diverges is left out of the records from then on, and does not disturb the others. Interrupted, each goes
    on alone from a checkpoint of its own.
    """
    settings.enter()
    with ExitStack() as held, stoppable() as stopped:
        mine = [trial for trial in trials if _taken(trial, root / trial.id, held)]
        errors = _run(mine, root, settings, stopped) if mine else []
    by_trial = dict(zip((trial.id for trial in mine), errors, strict=True))
    return [by_trial.get(trial.id) for trial in trials]


def _taken(trial: Trial, folder: Path, held: ExitStack) -> bool:
    """Take a trial's folder, unless somebody else has begun the trial since the batch was formed."""
    check_owner(folder, trial)
    make_folder(folder)
    try:
        held.enter_context(locked(folder))
    except InUseError:
        return False
    return not (folder / TRIAL).exists()


def _run(trials: Sequence[Trial], root: Path, settings: Settings, stopped: Stop) -> list[str | None]:
    folders = [root / trial.id for trial in trials]
    errors: list[str | None] = [None] * len(trials)
    with memory_explained(trials[0]), ExitStack() as held:
        engine = settings.engine.for_steps(trials[0].steps)
        session = Session([trial.task(settings.data) for trial in trials], engine)
        facts = provenance(settings, session)
        forget_scans()  # training does not need them
        for trial, folder in zip(trials, folders, strict=True):
            remove_temporary(folder)
            describe(folder, trial, facts)
        tracking = [held.enter_context(Tracking(settings.trackers, folder)) for folder in folders]

        after, saved = -1, time.monotonic()
        going = dict(enumerate(zip(trials, folders, strict=True)))
        for evaluation in train(session, trials[0].schedule, stop=lambda: stopped.signal is not None):
            if evaluation is None:
                _save_all(session, going, after)
                raise stopped.error(root, many=True)
            after = evaluation.step
            for row, (trial, folder) in list(going.items()):
                record = record_of(trial, session, evaluation, row)
                append_record(folder / RECORDS, record)
                tracking[row].record(record)
                if evaluation.diverged[row]:
                    error = diverged(folder, after)
                    note_failure(folder, error)
                    errors[row] = str(error)
                    tracking[row].end("diverged")
                    del going[row]
            if not going:
                break
            if time.monotonic() - saved >= settings.checkpoint_seconds and after < trials[0].steps - 1:
                _save_all(session, going, after)
                saved = time.monotonic()
        _save_all(session, going, after)
        ends = final(session)
        for row, (trial, folder) in going.items():
            if ends:
                record = record_of(trial, session, ends[row]) | {FINAL: True}
                append_record(folder / RECORDS, record)
                tracking[row].record(record)
            write_whole(folder / "done", b"done\n")
            tracking[row].end("done")
    return errors


def _save_all(session: Session, going: dict[int, tuple[Trial, Path]], after: int) -> None:
    for row, (trial, folder) in going.items():
        save(folder, trees.index(session.train_state, row), trial, after)
