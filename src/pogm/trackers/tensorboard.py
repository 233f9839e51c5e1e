"""TensorBoard: an event file in the run's folder, for ``tensorboard --logdir runs``."""

import time
from collections.abc import Iterator
from pathlib import Path

from pogm.trackers.base import Config, Record, Tracker, scalars


class TensorBoard(Tracker):
    """Writes one event for each evaluation: all of its numbers, or, where the process is killed, none."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Open another event file beside those of earlier processes."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        place = folder / "tensorboard"
        self.config = config
        self.written = set(_written(place))
        self.writer = EventFileWriter(str(place))

    def record(self, record: Record) -> None:
        """Write what the event files do not have yet."""
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


def _written(place: Path) -> Iterator[tuple[int, str]]:
    """The steps and names in the event files of a folder; a file that was cut short is read as far as it goes."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(place.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value.tag
