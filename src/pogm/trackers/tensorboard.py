"""TensorBoard: logs to an event file in the run's folder, for ``tensorboard --logdir runs``."""

import time
from collections.abc import Iterator
from pathlib import Path

from pogm.trackers.base import Config, Record, Tracker, scalars


class TensorBoard(Tracker):
    """Event file with one event per evaluation. If the process is killed, an event is complete or missing."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Open a new event file next to those of earlier processes."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory = folder / "tensorboard"
        self.config = config
        self.written = set(_read_written(directory))
        self.writer = EventFileWriter(str(directory))

    def record(self, record: Record) -> None:
        """Write the numbers that the event files do not have yet."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        step, numbers = record["step"], scalars(record, self.config)
        new = {name: value for name, value in numbers.items() if (step, name) not in self.written}
        if new:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in new.items()]
            self.writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self.writer.flush()

    def end(self, status: str) -> None:
        """Close the event file."""
        self.writer.close()


def _read_written(directory: Path) -> Iterator[tuple[int, str]]:
    """Yield the steps and names in all event files of a directory; a truncated file is read up to its end."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(directory.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value.tag
