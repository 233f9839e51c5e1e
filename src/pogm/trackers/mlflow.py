"""MLflow: in the store that MLFLOW_TRACKING_URI names, else in a folder ``mlruns`` beside the run's."""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pogm._system.files import write_whole
from pogm.trackers.base import Config, Record, Tracker, scalars, title

TAG = "pogm.trial"
STATUS = {"done": "FINISHED", "interrupted": "KILLED"}  # else FAILED
MOST = 100  # parameters that MLflow takes at once


class MLflow(Tracker):
    """A run that is tagged with the trial's id; the file ``mlflow`` in the trial's folder has MLflow's id of it."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Go on with the run, or begin it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which needs no database
        place = folder.absolute().parent / "mlruns"
        named = os.environ.get("MLFLOW_TRACKING_URI")
        from mlflow import MlflowClient

        self.config = config
        self.written: set[tuple[str, int]] = set()
        with nullcontext() if named else _alone(place):
            self.client = MlflowClient(named or place.as_uri())
            experiment = self._experiment()
        known = folder / "mlflow"  # asking the store for the tag would read every run in it
        run = self._known(known) or self.client.create_run(experiment, tags={TAG: run_id}, run_name=title(config))
        self.run = str(run.info.run_id)
        write_whole(known, self.run.encode())
        self.client.update_run(self.run, status="RUNNING")
        self._describe(run.data.params)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pogm")
        known = self.client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self.client.create_experiment(name))

    def _known(self, path: Path) -> Any:
        """The run that was begun before, if this store has it and a process that was killed has left it legible."""
        from mlflow.exceptions import MlflowException

        with suppress(FileNotFoundError, MlflowException, ValueError):
            run = self.client.get_run(path.read_text())
            for name in run.data.metrics:
                self.written |= {(name, one.step) for one in self.client.get_metric_history(run.info.run_id, name)}
            return run
        self.written = set()
        return None

    def _describe(self, there: Mapping[str, str]) -> None:
        """Give the run its parameters: the trial."""
        from mlflow.entities import Param

        named = {allowed(name): str(value) for name, value in _flat("", self.config["trial"])}
        new = [Param(name, value) for name, value in named.items() if name not in there]
        for first in range(0, len(new), MOST):
            self.client.log_batch(self.run, params=new[first : first + MOST])

    def record(self, record: Record) -> None:
        """Write what the store does not have yet."""
        from mlflow.entities import Metric

        step, now = record["step"], int(time.time() * 1000)
        numbers = {allowed(name): value for name, value in scalars(record, self.config).items()}
        new = [Metric(name, value, now, step) for name, value in numbers.items() if (name, step) not in self.written]
        self.client.log_batch(self.run, metrics=new)

    def end(self, status: str) -> None:
        """Say how the run ended."""
        self.client.set_terminated(self.run, STATUS.get(status, "FAILED"))


def allowed(name: str) -> str:
    """A name as MLflow takes it: +90% is :2b:90:25:, and no two names become one."""
    return re.sub(r"[^/\w.\- ]", lambda found: f":{ord(found[0]):x}:", name)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time: those that meet in a new folder would each make an experiment of the same name."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, such as algorithm/kappa."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(f"{name}/{key}" if name else str(key), part)
    else:
        yield name, value
