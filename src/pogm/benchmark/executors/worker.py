"""Workers: processes that run the jobs of a sweep. A job is one or more trials that are trained as one batch.

Where the platform has a fork server, it starts the workers, so that torch is imported only once.
"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from types import FrameType

import torch
import torch._inductor.config

import pogm
from pogm._system.errors import DiskFullError, InUseError, PogmError, StoppedError, is_disk_full
from pogm._system.files import is_empty
from pogm._system.terminal import WarningPrinter, escape_output, message_text, printed_warnings
from pogm._system.unexpected import EXIT_CODE, report_unexpected
from pogm.benchmark.executors.jobs import halve_by_method
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.batch import UnevenBatchError
from pogm.benchmark.runs.context import failure_text, write_failure
from pogm.benchmark.runs.directory import has_begun, make_folder, write_trial
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.runner import run_batch

DRIVER_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}  # sent to all processes; workers block them


class Worker:
    """Handle of a process that runs jobs, one after the other.

    Args:
        gpu: GPU to use, as the value of CUDA_VISIBLE_DEVICES; None for that of the options.
        compile_threads: Number of kernels to compile at once, unless TORCHINDUCTOR_COMPILE_THREADS is set; None for
            torch's choice.
    """

    job: list[Trial]
    deadline: float | None = None  # of the job
    missed_deadline = False  # True after the job was stopped for this reason

    def __init__(self, gpu: str | None = None, compile_threads: int | None = None) -> None:
        self.gpu, self.compile_threads = gpu, compile_threads
        environment = dict(os.environ) if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        context = _process_context()
        self.pipe, child = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(child, environment, compile_threads, printed_warnings()), daemon=True
        )
        # Ctrl-C sends SIGINT to every process of the terminal, closing the terminal sends SIGHUP, and Slurm may send
        # SIGUSR1 to every process of a job. Workers start with these signals blocked; the driver (this process) stops
        # the workers. The resource tracker is started first, because its start would unblock the signals.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVER_SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child.close()  # so that `recv` raises EOFError when the process ends

    def start_job(self, job: list[Trial], root: Path, options: RunOptions) -> None:
        """Send a job to the process."""
        self.job = job
        with suppress(ConnectionError):  # the process died; `receive_errors` reports it
            self.pipe.send((job, root, options))

    def stop_if_late(self, now: float) -> None:
        """Send SIGTERM to the process if the deadline of the job is over; it writes a checkpoint and exits."""
        if self.deadline is not None and now >= self.deadline and not self.missed_deadline:
            self.process.terminate()
            self.missed_deadline = True

    def receive_errors(self) -> list[str | None] | None:
        """Receive the errors of the trials of the job, see `run_job`; None if the process died.

        Raises:
            DiskFullError: If the disk is full.
        """
        try:
            errors: list[str | None] | DiskFullError = self.pipe.recv()
        except (EOFError, ConnectionError):
            return None
        if isinstance(errors, DiskFullError):
            raise errors
        return errors

    def close(self) -> None:
        """Let an idle process exit, and wait for the end of the process."""
        self.pipe.close()  # an idle process reads the end of the pipe and exits
        self.process.join()
        self.process.close()


def _process_context() -> ForkServerContext | SpawnContext:
    """Return the context that starts workers: a fork server, which imports torch once for all of them.

    The server only imports modules, so it has no thread of torch that could hold a lock when it forks.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # most runs import torch._dynamo, in 2 s
    return context


def _serve(pipe: Connection, environment: dict[str, str], compile_threads: int | None, printed: frozenset[str]) -> None:
    """Run jobs until the pipe is closed, this process gets a stop signal, or the parent process dies.

    All three end the process by a normal exit. An exit by a signal would skip the release of semaphores, such as those
    of torch's compiler, and the resource tracker would report them as leaked.

    Args:
        pipe: Connection that receives jobs, and sends the errors of their trials (see `run_job`).
        environment: Environment variables of the parent; those of the fork server may be older.
        compile_threads: Number of kernels to compile at once; None for torch's choice.
        printed: Texts of warnings that the parent has printed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, DRIVER_SIGNALS)
    escape_output()
    warnings.showwarning = WarningPrinter(printed)
    signal.signal(signal.SIGTERM, _exit)
    os.environ.clear()
    os.environ.update(environment)
    if compile_threads is not None and "TORCHINDUCTOR_COMPILE_THREADS" not in environment:
        torch._inductor.config.compile_threads = compile_threads
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        while True:
            job = pipe.recv()
            try:
                pipe.send(run_job(*job))
            except DiskFullError as error:
                pipe.send(error)
    except (EOFError, ConnectionError, StoppedError):
        return
    except Exception as error:  # such as a job that cannot be read, because this process cannot import its classes
        report_unexpected(error, "the work of a process of a sweep")
        sys.exit(EXIT_CODE)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _follow_parent() -> None:
    """Stop this process, with a checkpoint, when its parent dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def run_job(job: list[Trial], root: Path, options: RunOptions) -> list[str | None]:
    """Run the trials of a job as one batch; return the error of each as text.

    A trial that another process runs has no error here: that process reports it. A trial that cannot train in the batch
    (`UnevenBatchError`) is run alone afterwards. If trials with different modifiers fail as a batch, a modifier may be
    the reason: they are divided by their modifiers into smaller batches, which are run one after the other.

    Raises:
        StoppedError: If a signal stopped the job.
        DiskFullError: If the disk is full.
    """
    parts: list[list[Trial]] = []
    errors: list[PogmError | None] = []
    try:
        errors = run_batch(job, [root / trial.id for trial in job], options)
    except StoppedError:
        raise
    except InUseError:
        return [None] * len(job)
    except Exception as error:
        if is_disk_full(error):
            raise DiskFullError(str(error)) from error
        parts = halve_by_method(job)
        if not parts:
            for trial in job:
                if not has_begun(trial, root):  # the reason is missing data, for example
                    note_failure(trial, root, error)
            return [failure_text(error)] * len(job)
    if parts:  # after the handler: until its end, the error refers to the session with its memory
        torch.cuda.empty_cache()
        outcome = {t.id: text for part in parts for t, text in zip(part, run_job(part, root, options), strict=True)}
        return [outcome[trial.id] for trial in job]
    texts: list[str | None] = []
    for trial, found in zip(job, errors, strict=True):
        if isinstance(found, UnevenBatchError):
            texts += run_job([trial], root, options)
        else:
            texts.append(None if found is None or isinstance(found, InUseError) else message_text(found))
    return texts


def note_failure(trial: Trial, root: Path, error: Exception) -> None:
    """Write the reason of a failure that the run itself could not write to its directory.

    A trial file that is lost is not written again: the run would then resume without its provenance.
    """
    folder = root / trial.id
    with suppress(PogmError, OSError):
        make_folder(folder)
        if not has_begun(trial, root) and is_empty(folder):
            write_trial(folder, trial, {})
        write_failure(folder, error)


def describe_versions() -> str:
    """Return the versions that must be the same on all machines of a cluster, because they affect the numbers."""
    return f"pogm {pogm.__version__} with torch {torch.__version__}"
