"""Telling trackers of a run, each from a thread of its own: one that raises, or hangs, never hurts the run."""

import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from pogm._system.errors import DivergedError, StoppedError
from pogm._system.files import read_json
from pogm.trackers import all_trackers
from pogm.trackers.base import Record

END_SECONDS = 20.0  # for a tracker to take what it was told, once the run has ended


class TrackerWarning(UserWarning):
    """A tracker failed, and is told no more of the run."""


class Tracking:
    """The trackers of one run, whose folder has its trial.json; used as ``with Tracking(...) as tracking``."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.tellers = [_Teller(name, folder) for name in names]
        self.ended: float | None = None

    def record(self, record: Record) -> None:
        """Tell of an evaluation."""
        self._tell(record)

    def end(self, status: str) -> None:
        """Tell how the run ended; only the first time counts."""
        if self.ended is None:
            self.ended = time.monotonic()
            self._tell(status)

    def _tell(self, message: Record | str) -> None:
        for teller in list(self.tellers):
            teller.messages.put(message)
            if teller.error is not None:
                self._leave_out(teller, f"{type(teller.error).__name__}: {teller.error}")

    def _leave_out(self, teller: "_Teller", why: str) -> None:
        self.tellers.remove(teller)
        text = f"The tracker {teller.name} failed and is left out; the run is not affected. {why}"
        warnings.warn(text, TrackerWarning, stacklevel=4)

    def __enter__(self) -> "Tracking":
        for teller in self.tellers:
            teller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(_status(error))
        if kind is not None and not issubclass(kind, Exception):
            return  # somebody wants this process to end, now
        for teller in list(self.tellers):
            teller.join(max(0.0, (self.ended or 0.0) + END_SECONDS - time.monotonic()))
            if teller.error is not None:
                self._leave_out(teller, f"{type(teller.error).__name__}: {teller.error}")
            elif teller.is_alive():
                self._leave_out(teller, f"It was not ready {END_SECONDS:.0f} s after the run's end.")


class _Teller(threading.Thread):
    """Passes on to one tracker what it is told, in order; a daemon, so that no process waits for it."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.folder = folder
        self.messages: SimpleQueue[Record | str] = SimpleQueue()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            tracker = all_trackers()[self.name]()
            config = read_json(self.folder / "trial.json")
            tracker.start(config["id"], self.folder, config)
            while not isinstance(message := self.messages.get(), str):
                tracker.record(message)
            tracker.end(message)
        except BaseException as error:  # whatever it is, the run goes on
            self.error = error


def _status(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, DivergedError):
        return "diverged"
    return "failed" if isinstance(error, Exception) and not isinstance(error, StoppedError) else "interrupted"
