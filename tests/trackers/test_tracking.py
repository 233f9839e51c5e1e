"""Test that a failing tracker does not affect the run."""

import json
import threading
import time
from pathlib import Path

import pytest
from processes import records, weights
from support import trial

from pogm import ERM
from pogm._system.errors import DivergedError, StoppedError
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.trackers import Tracker, tracking
from pogm.trackers.tracking import TrackerWarning, Tracking

ONE = trial(ERM(), steps=31)


class RecordingTracker(Tracker):
    """Tracker that stores all calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def start(self, run_id, folder, config):
        self.calls.append(("start", run_id, folder, config["label"]))

    def record(self, record):
        self.calls.append(record["step"])

    def end(self, status):
        self.calls.append(status)


class FailingTracker(RecordingTracker):
    """Tracker that raises in the given methods."""

    def __init__(self, *where: str) -> None:
        super().__init__()
        self.where = where

    def _fail(self, method: str) -> None:
        if method in self.where:
            raise SystemExit(f"no {method}")  # not even an Exception

    def start(self, *args):
        self._fail("start")
        super().start(*args)

    def record(self, record):
        super().record(record)
        self._fail("record")

    def end(self, status):
        self._fail("end")


@pytest.fixture
def register(monkeypatch):
    """Function that registers trackers by name and returns the options of a run with them."""

    def make(**trackers: Tracker) -> RunOptions:
        found = {name: lambda tracker=tracker: tracker for name, tracker in trackers.items()}
        monkeypatch.setattr(tracking, "tracker_class", found.__getitem__)
        monkeypatch.setattr("pogm.trackers.check_trackers", lambda names: None)
        return RunOptions(trackers=tuple(trackers))

    return make


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run without trackers."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    run(ONE, folder)
    return folder


@pytest.mark.parametrize("where", [("start",), ("record",), ("end",), ("start", "record", "end")])
def test_failing_tracker_warns_once_and_affects_nothing_else(tmp_path, register, clean, where):
    sound, broken = RecordingTracker(), FailingTracker(*where)
    with pytest.warns(TrackerWarning, match=f"tracker broken failed.*not affected. SystemExit: no {where[0]}") as seen:
        run(ONE, tmp_path / "run", register(broken=broken, sound=sound))
    assert len(seen) == 1
    assert records(tmp_path / "run") == records(clean)
    assert weights(tmp_path / "run") == weights(clean)
    assert (tmp_path / "run" / "done").exists()
    assert sound.calls == [("start", ONE.id, tmp_path / "run", "ERM"), 0, 10, 20, 30, "done"]
    if where == ("record",):
        assert len(broken.calls) == 2, "it receives nothing after its failure"


@pytest.mark.parametrize("method", ["start", "record", "end"])
def test_hanging_tracker_is_abandoned_after_a_time(tmp_path, register, clean, monkeypatch, method):
    free = threading.Event()
    hanging = RecordingTracker()
    monkeypatch.setattr(hanging, method, lambda *_: free.wait(60))
    monkeypatch.setattr(tracking, "END_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.warns(TrackerWarning, match="not ready"):
        run(ONE, tmp_path / "run", register(hanging=hanging))
    assert time.monotonic() - began < 30
    assert records(tmp_path / "run") == records(clean)
    free.set()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoppedError("stopped"), "interrupted"),
        (DivergedError("diverged"), "diverged"),
        (ValueError("a bug"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_trackers_receive_final_status(tmp_path, register, error, status):
    tracker = RecordingTracker()
    register(tracker=tracker)
    (tmp_path / "trial.json").write_text(json.dumps({"id": "x", "label": "ERM"}))

    def ended() -> None:
        with Tracking(("tracker",), tmp_path):
            raise error

    with pytest.raises(type(error)):
        ended()
    end = time.monotonic() + 10
    while tracker.calls[-1:] != [status] and time.monotonic() < end:
        time.sleep(0.01)
    assert tracker.calls == [("start", "x", tmp_path, "ERM"), status]
