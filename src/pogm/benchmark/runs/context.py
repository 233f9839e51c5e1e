"""The context of a run: signals that stop it, notes about failures, and settings of torch while it lasts."""

import json
import logging
import os
import resource
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from pogm._system.errors import DataError, MemoryLimitError, PogmError, StoppedError, file_error_text, is_disk_full
from pogm._system.files import write_atomic
from pogm._system.signals import interrupt, is_ignored
from pogm._system.terminal import leave_closed_terminal, message_text
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import FAILED, SWEEP

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # schedulers send SIGUSR1 in time
STOPPING = b"\npogm: Stopping after the current step, with a checkpoint. Press Ctrl-C again to stop at once.\n"
EXIT_CODES = {signal.SIGINT: 130, signal.SIGHUP: 129}  # all others: 75


@contextmanager
def note_failures(directory: Path) -> Iterator[None]:
    """Write ``failed.json`` if the block raises; delete an older one first.

    A run that was stopped has not failed, and neither has one that found the disk full: both can be resumed.
    """
    (directory / FAILED).unlink(missing_ok=True)
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            write_failure(directory, error)
        raise


def write_failure(directory: Path, error: Exception) -> None:
    """Write the reason of a failure to ``failed.json``, for reports."""
    with suppress(DataError):  # the disk may be full
        write_atomic(directory / FAILED, json.dumps({"error": failure_text(error)}).encode())


def failure_text(error: Exception) -> str:
    """Return the message of a `PogmError` or of an error of a file; the traceback of any other error, a bug."""
    if isinstance(error, OSError):
        return file_error_text(error)
    return message_text(error) if isinstance(error, PogmError) else "".join(traceback.format_exception(error))


@contextmanager
def explain_out_of_memory(trial: Trial) -> Iterator[None]:
    """Replace out-of-memory errors by an error that says how to use less memory.

    Raises:
        MemoryLimitError: If the memory of the host or of the device is exhausted.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        full = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        if not full:
            raise
        raise MemoryLimitError(
            f"Expected {trial.label} on {trial.dataset.title} to fit into memory; found it full ({_peak_memory()}) "
            f"with batches of {trial.training.batch_size} from each of {len(trial.train_domains)} training domains: "
            f"{(str(error) or type(error).__name__).splitlines()[0]} Start a new run with a smaller batch "
            "(--set batch_size=...) or network (--set network=...), with --precision bf16, with --micro-batch, which "
            "keeps the batch and computes activations twice, with --trajectories host for POGM, or on a larger device."
        ) from error


def _peak_memory() -> str:
    device = max((torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())), default=0)
    if device:
        return f"peak {device / 2**30:.1f} GiB on the GPU"
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"


@dataclass
class Stop:
    """The stop signal that this process received, if any."""

    signal: int | None = None
    saves: bool = True  # False while there is nothing to save: then Ctrl-C and SIGHUP end the run at once

    @contextmanager
    def without_saving(self) -> Iterator[None]:
        """Let Ctrl-C and SIGHUP raise `KeyboardInterrupt` while the block runs, such as one that reads the data."""
        self.saves = False
        try:
            yield
        finally:
            self.saves = True

    def error(self, directory: Path, many: bool = False) -> StoppedError:
        """Return the error that ends a run after its checkpoint.

        Args:
            directory: The directory of the run, or of all runs.
            many: Whether the directory contains several runs.
        """
        saved = "checkpoints" if many else "a checkpoint"
        can_resume = not many or (directory / SWEEP).exists()
        then = (
            f"Continue with: pogm resume {shlex.quote(str(directory))}"
            if can_resume
            else "The same command continues from here."
        )
        return StoppedError(
            f"Stopped by {signal.Signals(self.signal or 0).name} in {directory} with {saved}. {then}",
            exit_code=EXIT_CODES.get(signal.Signals(self.signal or 0), 75),
        )


@contextmanager
def catch_stop_signals(answer: bytes = STOPPING) -> Iterator[Stop]:
    """Record the first stop signal, so that the caller can stop after the current step; exit at the second one.

    SIGHUP is not counted as a second one: the system and the shell both send it when a terminal is closed. A process
    that ignores it (``nohup``) continues to do so. In a thread other than the main thread, signals are left to the main
    thread.

    Args:
        answer: Text for the terminal at the first Ctrl-C.
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_closed_terminal()
        if not stop.saves and number in EXIT_CODES:
            interrupt(number, frame)
        if stop.signal is None:
            stop.signal = number
            if number == signal.SIGINT and sys.stderr.isatty():
                os.write(sys.stderr.fileno(), answer)  # print is not safe in a handler
        elif number != signal.SIGHUP:
            sys.exit(128 + number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not is_ignored(number)]
        previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` CPU threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def silence_compiler_log() -> None:
    """Log only errors of torch's compiler: its warnings would be mixed with the progress of the runs.

    The environment variable TORCH_LOGS takes precedence.
    """
    torch._logging.set_logs(all=logging.ERROR)  # type: ignore[attr-defined]
