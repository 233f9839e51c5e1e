"""Sends the evaluations of a run to its trackers, one thread each, so that a tracker cannot fail or block the run."""

import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from pogm._system.errors import DivergedError, StoppedError
from pogm._system.files import read_json
from pogm.trackers import tracker_class
from pogm.trackers.base import Record

END_SECONDS = 20.0  # time that a tracker may take after the end of the run


class TrackerWarning(UserWarning):
    """A tracker failed and receives nothing more."""


class Tracking:
    """The trackers of one run, as a context manager: ``with Tracking(names, folder) as tracking``.

    The folder must contain the trial.json of the run.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.threads = [_TrackerThread(name, folder) for name in names]
        self.ended: float | None = None

    def record(self, record: Record) -> None:
        """Send an evaluation to all trackers."""
        self._send(record)

    def end(self, status: str) -> None:
        """Send the final status of the run; only the first call has an effect."""
        if self.ended is None:
            self.ended = time.monotonic()
            self._send(status)

    def _send(self, message: Record | str) -> None:
        for thread in list(self.threads):
            thread.messages.put(message)
            if thread.error is not None:
                self._remove(thread, f"{type(thread.error).__name__}: {thread.error}")

    def _remove(self, thread: "_TrackerThread", reason: str) -> None:
        self.threads.remove(thread)
        text = f"The tracker {thread.name} failed and is left out; the run is not affected. {reason}"
        warnings.warn(text, TrackerWarning, stacklevel=4)

    def __enter__(self) -> "Tracking":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(_status(error))
        if kind is not None and not issubclass(kind, Exception):
            return  # KeyboardInterrupt or SystemExit: do not wait
        for thread in list(self.threads):
            thread.join(max(0.0, (self.ended or 0.0) + END_SECONDS - time.monotonic()))
            if thread.error is not None:
                self._remove(thread, f"{type(thread.error).__name__}: {thread.error}")
            elif thread.is_alive():
                self._remove(thread, f"It was not ready {END_SECONDS:.0f} s after the run's end.")


class _TrackerThread(threading.Thread):
    """Thread that sends messages to one tracker, in order. It is a daemon, so the process does not wait for it."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.folder = folder
        self.messages: SimpleQueue[Record | str] = SimpleQueue()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            tracker = tracker_class(self.name)()
            config = read_json(self.folder / "trial.json")
            tracker.start(config["id"], self.folder, config)
            while not isinstance(message := self.messages.get(), str):
                tracker.record(message)
            tracker.end(message)
        except BaseException as error:  # the run continues after any error
            self.error = error


def _status(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, DivergedError):
        return "diverged"
    return "failed" if isinstance(error, Exception) and not isinstance(error, StoppedError) else "interrupted"
