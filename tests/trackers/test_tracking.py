"""A tracker that fails never hurts a run."""

import json
import threading
import time
from pathlib import Path

import pytest
from processes import records, weights
from support import trial

from pogm import ERM
from pogm._system.errors import DivergedError, StoppedError
from pogm.benchmark.runs.runner import Settings, run
from pogm.trackers import Tracker, tracking
from pogm.trackers.tracking import TrackerWarning, Tracking

ONE = trial(ERM(), steps=31)


class Told(Tracker):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def start(self, run_id, folder, config):
        self.said.append(("start", run_id, folder, config["label"]))

    def record(self, record):
        self.said.append(record["step"])

    def end(self, status):
        self.said.append(status)


class Failing(Told):
    """Raises wherever it is told to."""

    def __init__(self, *where: str) -> None:
        super().__init__()
        self.where = where

    def _fail(self, place: str) -> None:
        if place in self.where:
            raise SystemExit(f"no {place}")  # not even an Exception

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
    """Make trackers known by name."""

    def make(**trackers: Tracker) -> Settings:
        found = {name: lambda tracker=tracker: tracker for name, tracker in trackers.items()}
        monkeypatch.setattr(tracking, "all_trackers", lambda: found)
        monkeypatch.setattr("pogm.benchmark.runs.runner.check_trackers", lambda names: None)
        return Settings(trackers=tuple(trackers))

    return make


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody tracks."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    run(ONE, folder)
    return folder


@pytest.mark.parametrize("where", [("start",), ("record",), ("end",), ("start", "record", "end")])
def test_failing_tracker_warns_once_and_affects_nothing_else(tmp_path, register, clean, where):
    sound, broken = Told(), Failing(*where)
    with pytest.warns(TrackerWarning, match=f"tracker broken failed.*not affected. SystemExit: no {where[0]}") as seen:
        run(ONE, tmp_path / "run", register(broken=broken, sound=sound))
    assert len(seen) == 1
    assert records(tmp_path / "run") == records(clean)
    assert weights(tmp_path / "run") == weights(clean)
    assert (tmp_path / "run" / "done").exists()
    assert sound.said == [("start", ONE.id, tmp_path / "run", "ERM"), 0, 10, 20, 30, "done"]
    if where == ("record",):
        assert len(broken.said) == 2, "it is told no more after it failed"


@pytest.mark.parametrize("place", ["start", "record", "end"])
def test_hanging_tracker_is_abandoned_after_a_time(tmp_path, register, clean, monkeypatch, place):
    free = threading.Event()
    hanging = Told()
    monkeypatch.setattr(hanging, place, lambda *_: free.wait(60))
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
    told = Told()
    register(told=told)
    (tmp_path / "trial.json").write_text(json.dumps({"id": "x", "label": "ERM"}))

    def ended() -> None:
        with Tracking(("told",), tmp_path):
            raise error

    with pytest.raises(type(error)):
        ended()
    end = time.monotonic() + 10
    while told.said[-1:] != [status] and time.monotonic() < end:
        time.sleep(0.01)
    assert told.said == [("start", "x", tmp_path, "ERM"), status]
