"""What surrounds a run: signals that stop it, memory that runs out, failures that leave a note."""

import json
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

from pogm._system.errors import DataError, MemoryLimitError, PogmError, StoppedError
from pogm._system.files import write_whole
from pogm.benchmark.plan.trial import Trial

FAILED = "failed.json"


@contextmanager
def failure_noted(folder: Path) -> Iterator[None]:
    """Leave the reason in the folder where a run fails, for the report to show; one that was stopped has not."""
    (folder / FAILED).unlink(missing_ok=True)
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        note_failure(folder, error)
        raise


def note_failure(folder: Path, error: Exception) -> None:
    """Write down why a run failed."""
    reason = str(error) if isinstance(error, PogmError) else traceback.format_exc()
    with suppress(DataError):  # the disk may be what failed
        write_whole(folder / FAILED, json.dumps({"error": reason}).encode())


@contextmanager
def memory_explained(trial: Trial) -> Iterator[None]:
    """Say what would need less memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        full = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        if not full:
            raise
        raise MemoryLimitError(
            f"Expected {trial.label} on {trial.dataset.title} to fit into memory; found it full ({_peak()}) with "
            f"batches of {trial.training.batch_size} from each of {len(trial.train_domains)} training domains: "
            f"{str(error).splitlines()[0]} Start a new run with a smaller batch (--set batch_size=...) or network "
            "(--set network=...), with --precision bf16, with --trajectories host for POGM, or on a larger device."
        ) from error


def _peak() -> str:
    """The most memory that was in use so far."""
    device = max((torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())), default=0)
    if device:
        return f"peak {device / 2**30:.1f} GiB on the GPU"
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"


@dataclass
class Stop:
    """The signal that asked for an end, if one did."""

    signal: int | None = None

    def error(self, folder: Path, many: bool = False) -> StoppedError:
        """The error that ends a run, or many below a folder, after its checkpoint."""
        alone = f"with a checkpoint. Go on with: pogm resume {shlex.quote(str(folder))}"
        all_of_them = "with checkpoints. The same command goes on from here."
        return StoppedError(
            f"Stopped by {signal.Signals(self.signal or 0).name} in {folder} {all_of_them if many else alone}",
            exit_code=130 if self.signal == signal.SIGINT else 75,
        )


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let the first SIGINT, SIGTERM or SIGUSR1 (a scheduler's warning) end the step; the second ends the process."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            sys.exit(128 + number)
        stop.signal = number

    before = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere, whoever owns it owns the signals
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
