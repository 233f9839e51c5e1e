"""The Slurm executor, and its driver: run many trials in jobs of a Slurm cluster, which submitit submits.

Every job takes trials that nobody runs from the folder of the sweep, one after the other. The locks of the run
directories decide who runs a trial, so several jobs, drivers and later submissions can share a folder, and jobs
continue without a driver. The driver submits jobs only if none is active, and waits for the files of finished runs.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pogm._system.errors import PogmError, StoppedError, UsageError
from pogm._system.files import read_json, readable_json, write_atomic
from pogm._system.saved import check_form
from pogm._system.terminal import print_line
from pogm.benchmark.executors.outcomes import Outcome, split_done
from pogm.benchmark.executors.slurm_job import FOLDER, SweepJob, import_submitit
from pogm.benchmark.executors.worker import describe_versions
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, FAILED
from pogm.benchmark.results.records import read_failure
from pogm.benchmark.runs.context import EXIT_CODES, Stop, catch_stop_signals
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.sweep_directory import save_plan
from pogm.data.images.store import lock_directory

SUBMITTED = "jobs.json"
COMMANDS = ("sbatch", "srun", "squeue")
SIGNAL_SECONDS = 120  # time between this signal and the end of the job
REQUEUES = 1000  # of one job after its time limit
POLL_SECONDS = 1.0  # least time between two searches for finished runs
POLL_SHARE = 0.05  # most of the time of the driver that these searches take
QUEUE_SECONDS = 15.0  # time between two calls of squeue
NUMBERS = {"mem_gb": float, "nodes": int, "tasks_per_node": int, "cpus_per_task": int, "signal_delay_s": int}
LISTS = ("setup", "teardown", "srun_args")  # parameters of submitit that may be given several times
OPTIONS = {  # parameters of submitit that have options of their own
    "partition": "--partition",
    "time": "--time-limit",
    "timeout_min": "--time-limit",
    "gpus_per_node": "--gpus-per-job",
    "num_gpus": "--gpus-per-job",
    "array_parallelism": "--jobs",
}


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """Options of the jobs that are submitted."""

    jobs: int = 1  # number of jobs
    partition: str | None = None  # None for the default of the cluster
    time_limit: int = 240  # minutes
    gpus_per_job: int | None = None  # None for 1 with the device "cuda", else 0
    slurm: tuple[str, ...] = ()  # other parameters of submitit or sbatch, as NAME=VALUE


def run_on_slurm(
    trials: Sequence[Trial], root: Path, options: RunOptions, *, jobs: JobOptions | None = None
) -> Iterator[Outcome]:
    """Run every trial in ``root/<id>`` in Slurm jobs; yield each outcome when it is known, as ``run_all`` does.

    The root, the data and the installation must have the same path on every node, on shared storage where ``flock``
    works between nodes.

    If jobs of an earlier call are active, they are used, and no others are submitted. If all jobs have ended before the
    trials, new ones are submitted, unless no trial has ended since the last submission. If the driver is stopped, the
    jobs go on.

    Args:
        trials: The trials.
        root: The directory of the run directories.
        options: Options of the runner.
        jobs: Options of the jobs.

    Raises:
        UsageError: If Slurm or submitit is missing, or if Slurm refuses the jobs.
        PogmError: If jobs ended, and none of the trials did.
        StoppedError: After a stop signal.
    """
    jobs = jobs or JobOptions()
    root = root.absolute()
    options = dataclasses.replace(options, data=options.data and options.data.absolute())
    done, waiting = split_done(trials, root)
    yield from (Outcome(trial, ran=False) for trial in done)
    if not waiting:
        return
    submitit = import_submitit()
    check_commands()
    make_folder(root)
    make_folder(root / FOLDER)
    for trial in waiting:  # only with --retry-failed; jobs leave failed trials out
        (root / trial.id / FAILED).unlink(missing_ok=True)
    with catch_stop_signals(answer=b"") as stop:  # the jobs go on
        yield from _watch(submitit, waiting, root, options, jobs, stop)


def _watch(
    submitit: Any, trials: Sequence[Trial], root: Path, options: RunOptions, jobs: JobOptions, stop: Stop
) -> Iterator[Outcome]:
    left = list(trials)
    job = _submit_if_none_is_active(submitit, left, root, options, jobs)
    asked, is_active, has_progress = time.monotonic(), True, False
    while True:
        if time.monotonic() - asked >= QUEUE_SECONDS:  # before the search: a run may end in between
            asked, is_active = time.monotonic(), _is_active_or_unknown(job)
        start = time.monotonic()
        outcomes = [found for trial in left if (found := find_outcome(trial, root)) is not None]
        seconds = time.monotonic() - start
        ended = {outcome.trial.id for outcome in outcomes}
        left = [trial for trial in left if trial.id not in ended]
        has_progress = has_progress or bool(outcomes)
        yield from outcomes
        if not left:
            return
        if not is_active:
            if not has_progress:
                raise ended_error(job, len(left), root)
            job = _submit_if_none_is_active(submitit, left, root, options, jobs)
            asked, is_active, has_progress = time.monotonic(), True, False
        pause = max(POLL_SECONDS, seconds / POLL_SHARE)
        end = time.monotonic() + pause
        while stop.signal is None and (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, POLL_SECONDS))
        if stop.signal is not None:
            raise StoppedError(
                f"Stopped by {signal.Signals(stop.signal).name}. The Slurm jobs {job} go on. The same command shows "
                f"their progress again. To end them, with checkpoints: scancel {job}",
                exit_code=EXIT_CODES.get(signal.Signals(stop.signal), 75),
            )


def find_outcome(trial: Trial, root: Path) -> Outcome | None:
    """Return the outcome of a trial from its directory; None if it has not ended."""
    folder = root / trial.id
    if os.path.exists(f"{folder}/{DONE}"):
        return Outcome(trial)
    if os.path.exists(f"{folder}/{FAILED}") and state_of(folder) == "failed":
        return Outcome(trial, read_failure(folder))
    return None


def _submit_if_none_is_active(
    submitit: Any, trials: Sequence[Trial], root: Path, options: RunOptions, jobs: JobOptions
) -> str:
    """Return the number of the active jobs of a folder; submit jobs if there are none."""
    folder = root / FOLDER
    with lock_directory(folder):  # two drivers that start at the same time submit once
        if (folder / SUBMITTED).exists():
            saved = read_json(folder / SUBMITTED)
            check_form(saved, {"job": str, "jobs": int}, SUBMITTED)
            if is_active(saved["job"]):
                print_line(f"pogm: The Slurm jobs {saved['job']} are active; no others are submitted.", file=sys.stderr)
                return str(saved["job"])
        count = min(jobs.jobs, len(trials))
        save_plan(trials, folder)
        work = [SweepJob(root, options, number, count, describe_versions()) for number in range(count)]
        try:
            submitter = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=REQUEUES)
            for parameters in job_parameters(jobs, options.engine.device):
                _set_parameters(submitter, parameters)
            submitted = submitter.submit_array(work)
        except (RuntimeError, ValueError, AssertionError, OSError) as error:
            raise UsageError(
                f"Expected Slurm to accept {count} jobs; found: {str(error).strip()} Correct --partition, "
                "--time-limit, --gpus-per-job or --slurm."
            ) from error
        job = str(submitted[0].job_id).partition("_")[0]  # of the array
        write_atomic(folder / SUBMITTED, readable_json({"job": job, "jobs": count}))
    print_line(f"pogm: {count} Slurm job{'s' * (count > 1)} submitted: {job}. Logs: {folder}", file=sys.stderr)
    return job


def _set_parameters(submitter: Any, parameters: dict[str, Any]) -> None:
    """Set parameters by name; those that submitit does not know become options of sbatch."""
    try:
        submitter.update_parameters(**{f"slurm_{name}": value for name, value in parameters.items()})
    except NameError:
        others = {name.replace("_", "-"): value for name, value in parameters.items()}
        known = submitter.parameters.get("additional_parameters", {})
        submitter.update_parameters(slurm_additional_parameters={**known, **others})


def job_parameters(jobs: JobOptions, device: str) -> Iterator[dict[str, Any]]:
    """Yield the parameters of the jobs for submitit: first those that every job has, then those of --slurm, singly.

    Args:
        jobs: Options of the jobs.
        device: Device of the engine.

    Raises:
        UsageError: If a parameter is not NAME=VALUE, has an option of its own, or is not a number where one is needed.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Expected the device auto, cpu or cuda with Slurm; found {device!r}. Leave the number out.")
    gpus = (1 if device == "cuda" else 0) if jobs.gpus_per_job is None else jobs.gpus_per_job
    yield {
        "job_name": "pogm",
        "time": jobs.time_limit,
        "array_parallelism": jobs.jobs,
        "signal_delay_s": SIGNAL_SECONDS,
        **({"partition": jobs.partition} if jobs.partition else {}),
        **({"gpus_per_node": gpus} if gpus else {}),
    }
    lists: dict[str, list[str]] = {}
    for text in jobs.slurm:
        name, equals, value = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name:
            raise UsageError(f"Expected --slurm NAME=VALUE, such as account=lab; found {text!r}. Add the value.")
        if name in OPTIONS:
            raise UsageError(f"Expected {OPTIONS[name]} for {name}; found --slurm {text}. Use that option.")
        if name in LISTS:
            lists.setdefault(name, []).append(value)
        else:
            yield {name: _parse_value(name, value)}
    for name, values in lists.items():
        yield {name: values}


def _parse_value(name: str, text: str) -> Any:
    if name in NUMBERS:
        try:
            return NUMBERS[name](text)
        except ValueError as error:
            raise UsageError(f"Expected a number for --slurm {name}; found {text!r}. Write {name}=8.") from error
    return {"true": True, "false": False}.get(text, text)


def check_commands() -> None:
    """Raise an error if this machine lacks a command of Slurm."""
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise UsageError(
            f"Expected the commands of Slurm for --executor slurm; found no {', '.join(missing)} here. Start pogm on a "
            "login node of the cluster, or leave --executor out to use this machine."
        )


def is_active(job: str) -> bool:
    """Return True if a job, or a job of an array, waits or runs.

    Raises:
        UsageError: If squeue does not answer.
    """
    words = ["squeue", "--noheader", "--format=%i", f"--jobs={job}"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired as error:
        raise UsageError("Expected an answer of squeue within 60 s; found none. Ask `squeue` by hand.") from error
    if found.returncode and "Invalid job id" not in found.stderr:  # the id of a job that ended some time ago
        raise UsageError(f"Expected squeue to list jobs; found: {found.stderr.strip()}. Ask `squeue` by hand.")
    return bool(found.stdout.strip())


def _is_active_or_unknown(job: str) -> bool:
    try:
        return is_active(job)
    except UsageError:  # the server of Slurm may be restarting
        return True


def ended_error(job: str, left: int, root: Path) -> PogmError:
    """Return the error for jobs that ended, and no run did; with the reason, as far as it can be seen."""
    folder = root / FOLDER
    logs = sorted(folder.glob(f"{job}_*_log.*"), key=lambda path: path.stat().st_mtime)
    errors = [path for path in logs if path.suffix == ".err" and path.stat().st_size]
    if not logs:
        reason = (
            f"They wrote no log to {folder}, so the nodes probably do not see it. Choose an --out on storage that all "
            "nodes share, at the same path"
        )
    elif errors:
        lines = errors[-1].read_text(errors="replace").strip().splitlines()
        reason = f"The last line of {errors[-1]}: {lines[-1] if lines else ''}"
    else:
        reason = f"The log is {logs[-1]}"
    return PogmError(
        f"Expected the Slurm jobs {job} to finish {left} runs; found that all jobs ended and no run did. {reason}. The "
        "same command submits new jobs."
    )
