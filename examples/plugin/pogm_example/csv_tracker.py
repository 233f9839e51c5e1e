"""A tracker of another package."""

import csv
from pathlib import Path

from pogm.trackers.base import Config, Record, Tracker, scalars


class CsvTracker(Tracker):
    """File metrics.csv in the folder of the run: step, name and value of every number."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Read the steps that an earlier process has written."""
        self.path, self.config = folder / "metrics.csv", config
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.written = {line.partition(",")[0] for line in lines}

    def record(self, record: Record) -> None:
        """Append the numbers of an evaluation."""
        if str(record["step"]) in self.written:
            return
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows([record["step"], *number] for number in scalars(record, self.config).items())
