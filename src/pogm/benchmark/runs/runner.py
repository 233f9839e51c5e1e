"""The runner: train one trial, or several as a batch, each in its run directory.

One trial is a batch of one. Each trial has a run directory with these files:

- ``trial.json``: the trial and its provenance (device, versions, options)
- ``records.jsonl``: one line per evaluation
- ``checkpoints/``: the last checkpoints; a finished run of a sweep has none
- ``model/``: the weights of the selected step, and their description (see ``selected_model.py``)
- ``metrics.json``: metrics of that model, written when the run ends (see ``model_metrics.py``)
- ``failed.json``: the reason if the run failed
- ``done``: marks a finished run, and has the digest of its records; written last
"""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from pogm._system.errors import PogmError
from pogm.benchmark.costs.compile_choice import choose_compile, mode
from pogm.benchmark.plan.shared_training import make_task, share_training
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, read_verified
from pogm.benchmark.runs.batch import Batch, OnRecord, OnRound
from pogm.benchmark.runs.context import catch_stop_signals, explain_out_of_memory, use_threads
from pogm.benchmark.runs.directory import check_owner
from pogm.benchmark.runs.options import RunOptions as RunOptions
from pogm.benchmark.runs.provenance import read_provenance
from pogm.benchmark.runs.selected_model import check_validation_targets
from pogm.data.images.index import forget_scans, reuse_scans
from pogm.distributed.world import World
from pogm.engine.session import Engine, Session


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

    Trials that differ only in modifiers that do not change the training (SMA, SWAD, ...) are trained once. Trials
    resume from their checkpoints, if there are any. Several trials must be alike (see ``Task.shape``) and must have
    checkpoints of the same step, or none. If a trial of a batch diverges, the others continue. If a batch is
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
            groups = share_training(trials)
            tasks = [make_task(group, options.data) for group in groups]
            for (trial, *_), task in zip(groups, tasks, strict=True):
                if trial.dataset.task == "regression":  # other data is loaded once, by the session
                    check_validation_targets(trial, task.load())
            session = Session(
                tasks, _choose_engine(trials, folders, options), world if isinstance(world, World) else None
            )
        with ExitStack() as resources:
            resources.callback(session.close)
            given = {trial.id: number for number, trial in enumerate(trials)}
            order = [given[trial.id] for group in groups for trial in group]  # of the runs of the session
            ordered = [trials[number] for number in order], [folders[number] for number in order]
            batch = Batch(*ordered, options, session, world, stop, on_record, on_round)
            batch.errors = world.run_on_first(lambda: batch.take_directories(resources))
            if world.run_on_first(lambda: all((folder / DONE).exists() for folder in folders)):  # during the set-up
                return [None] * len(trials)
            forget_scans()  # training does not need them
            with explain_out_of_memory(trials[0]):
                batch.start_trackers(resources)
                batch.train()
            errors = dict(zip(order, batch.errors, strict=True))
            return [errors[number] for number in range(len(trials))]


def _choose_engine(trials: Sequence[Trial], folders: Sequence[Path], options: RunOptions) -> Engine:
    """Return the engine with a choice for ``--compile auto``. A run that is resumed keeps its first choice."""
    known = read_provenance("compiled", folders[0]) if options.engine.compile == "auto" else None
    sizes = len({trial.training.batch_size for trial in trials})
    if known is None:
        return choose_compile(options.engine, trials[0], sizes=sizes)
    return replace(options.engine, compile=mode(known, sizes))


def _are_done(folders: Sequence[Path], trials: Sequence[Trial]) -> bool:
    for folder, trial in zip(folders, trials, strict=True):
        check_owner(folder, trial)
    done = [folder for folder in folders if (folder / DONE).exists()]
    for folder in done:
        read_verified(folder)
    return len(done) == len(folders)
