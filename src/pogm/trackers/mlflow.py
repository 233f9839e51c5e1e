"""MLflow: logs to the store at MLFLOW_TRACKING_URI, or to a folder ``mlruns`` next to the run's folder."""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pogm._system.files import open_own_file, write_atomic
from pogm.trackers.base import Config, Record, Tracker, run_title, scalars

TAG = "pogm.trial"
STATUS = {"done": "FINISHED", "interrupted": "KILLED"}  # all others: FAILED
MOST = 100  # parameters that MLflow accepts in one call


class MLflow(Tracker):
    """MLflow run with the id of the trial as a tag. The file ``mlflow`` in the run's folder holds MLflow's run id."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Start or continue the run."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a file store needs no database
        directory = folder.absolute().parent / "mlruns"
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        from mlflow import MlflowClient

        self.config = config
        self.written: set[tuple[str, int]] = set()
        with nullcontext() if uri else _lock_directory(directory):
            self.client = MlflowClient(uri or directory.as_uri())
            experiment = self._find_experiment()
        path = folder / "mlflow"  # a search for the tag would read every run in the store
        run = self._find_run(path) or self.client.create_run(experiment, tags={TAG: run_id}, run_name=run_title(config))
        self.run = str(run.info.run_id)
        write_atomic(path, self.run.encode())
        self.client.update_run(self.run, status="RUNNING")
        self._log_params(run.data.params)

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pogm")
        known = self.client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self.client.create_experiment(name))

    def _find_run(self, path: Path) -> Any:
        """Return the run of an earlier process; None if this store does not have it or it cannot be read."""
        from mlflow.exceptions import MlflowException

        with suppress(FileNotFoundError, MlflowException, ValueError):
            run = self.client.get_run(path.read_text())
            for name in run.data.metrics:
                self.written |= {
                    (name, metric.step) for metric in self.client.get_metric_history(run.info.run_id, name)
                }
            return run
        self.written = set()
        return None

    def _log_params(self, logged: Mapping[str, str]) -> None:
        """Log the trial as parameters, except those that are logged already."""
        from mlflow.entities import Param

        params = {escape_name(name): str(value) for name, value in _flatten("", self.config["trial"])}
        new = [Param(name, value) for name, value in params.items() if name not in logged]
        for first in range(0, len(new), MOST):
            self.client.log_batch(self.run, params=new[first : first + MOST])

    def record(self, record: Record) -> None:
        """Log the numbers that the store does not have yet."""
        from mlflow.entities import Metric

        step, now = record["step"], int(time.time() * 1000)
        numbers = {escape_name(name): value for name, value in scalars(record, self.config).items()}
        new = [Metric(name, value, now, step) for name, value in numbers.items() if (name, step) not in self.written]
        self.client.log_batch(self.run, metrics=new)

    def end(self, status: str) -> None:
        """Set the status of the run."""
        self.client.set_terminated(self.run, STATUS.get(status, "FAILED"))


def escape_name(name: str) -> str:
    """Escape characters that MLflow does not accept: +90% becomes :2b:90:25:. Different names stay different."""
    return re.sub(r"[^/\w.\- ]", lambda found: f":{ord(found[0]):x}:", name)


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory, because two processes would both create an experiment of the same name."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "ab", opener=open_own_file) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, such as algorithm/kappa."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flatten(f"{name}/{key}" if name else str(key), part)
    else:
        yield name, value
