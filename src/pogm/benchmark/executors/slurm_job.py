"""The work of a Slurm job of a sweep, see `slurm_cluster`."""

import importlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import StoppedError, UsageError
from pogm.benchmark.executors.local import run_in_workers
from pogm.benchmark.executors.outcomes import ATTEMPTS
from pogm.benchmark.executors.worker import describe_versions
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import Stop, catch_stop_signals
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.sweep_directory import load_plan

FOLDER = "slurm"  # in the folder of the runs: plan, submitted jobs, files and logs of submitit
TIME_LIMIT_SIGNAL = signal.SIGUSR1  # one of `STOP_SIGNALS`; sent to a job before its time limit


@dataclass(frozen=True)
class SweepJob:
    """The work of one job: run trials of a folder until none is left that is not done, failed or run elsewhere.

    submitit pickles it, calls it on a node, and calls `checkpoint` before it puts the job into the queue again.
    """

    root: Path  # folder of the run directories
    options: RunOptions
    number: int = 0  # of this job
    count: int = 1  # of all jobs
    versions: str = ""  # of pogm and torch on the driver

    def __call__(self) -> None:
        """Run trials. After the signal of the time limit, save checkpoints and let submitit requeue the job.

        Raises:
            UsageError: If this node has other versions than the driver.
        """
        if self.versions != (found := describe_versions()):
            raise UsageError(f"Expected {self.versions} on every node; found {found}. Install the same on all.")
        trials = load_plan(self.root / FOLDER)
        first = self.number * len(trials) // self.count  # jobs begin with different trials
        trials = trials[first:] + trials[:first]
        with catch_stop_signals() as stop:
            try:
                self._run(trials, stop)
            except StoppedError as error:
                print(error, flush=True)
        if stop.signal == TIME_LIMIT_SIGNAL:
            signal.raise_signal(TIME_LIMIT_SIGNAL)  # now handled by submitit, which ends this process

    def checkpoint(self) -> Any:
        """Return the work of the job when it starts again: the same, since the runs have checkpoints."""
        return import_submitit().helpers.DelayedSubmission(self)

    def _run(self, trials: Sequence[Trial], stop: Stop) -> None:
        gpus = visible_gpus() if self.options.engine.torch_device().type == "cuda" else (None,)
        for _ in range(ATTEMPTS):  # later passes find trials of other jobs that ended before their trials
            free = [trial for trial in trials if self._is_free(trial)]
            if not free:
                return
            outcomes = run_in_workers(free, self.root, self.options, None, stop, is_free=self._is_free, gpus=gpus)
            for outcome in outcomes:
                print(f"{outcome.trial.id} {outcome.trial.label}: {outcome.error or 'done'}", flush=True)

    def _is_free(self, trial: Trial) -> bool:
        return state_of(self.root / trial.id) in ("waiting", "interrupted")


def visible_gpus() -> Sequence[str | None]:
    """Return values of CUDA_VISIBLE_DEVICES for one process per GPU of this job."""
    count = torch.cuda.device_count()
    if count <= 1:
        return (None,)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def import_submitit() -> Any:
    """Import the optional package submitit, with the signal of the time limit that runs understand."""
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = TIME_LIMIT_SIGNAL.name.removeprefix("SIG")  # read during the import
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise UsageError(
            f"Expected the package submitit for --executor slurm; found: {error}. "
            'Install it where the nodes see it, too: pip install "pogm[slurm]"'
        ) from error
