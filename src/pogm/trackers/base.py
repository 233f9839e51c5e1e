"""What a tracker is: something that is told of a run while it goes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]  # of a run: what its trial.json says
Record = Mapping[str, Any]  # a line of its records.jsonl


class Tracker:
    """Told of one run. It may fail: whoever tells it goes on without it."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Begin the run in this folder, or go on with it if it was begun before."""

    def record(self, record: Record) -> None:
        """Take an evaluation; one that was taken before, by this process or a killed one, is not taken again."""

    def end(self, status: str) -> None:
        """The run is done, interrupted, diverged or failed."""


def scalars(record: Record, config: Config) -> dict[str, float]:
    """The numbers of a record by name, such as accuracy/out/75, metrics/loss and metrics/angle/30.

    What it is marked as (swad: of averaged weights) heads its names, for it shares its step with another record.
    """
    domains = config["domains"]
    trained = [name for number, name in enumerate(domains) if number not in config["trial"]["test_domains"]]
    numbers: dict[str, Any] = {name: record.get(name) for name in ("epoch", "seconds_per_step", "memory_gb")}
    numbers |= _named("accuracy", record.get("accuracy"), domains)
    numbers |= _named("metrics", record.get("metrics"), trained)
    return {marked(name, record): float(value) for name, value in numbers.items() if _is_number(value)}


def marked(name: str, record: Record) -> str:
    """A name headed by what the record is marked as, if anything."""
    return "/".join([*(mark for mark, value in record.items() if value is True), name])


def title(config: Config) -> str:
    """What people call the run."""
    dataset = config["trial"]["dataset"]
    held_out = ", ".join(config["domains"][number] for number in config["trial"]["test_domains"])
    return f"{config['label']} on {dataset.get('title', dataset['name'])}, held out {held_out}"


def _named(name: str, value: Any, domains: Sequence[str]) -> dict[str, Any]:
    """The leaves of a value; those of a list that has one for each domain by the domains' names."""
    return dict(_leaves(name, value, domains))


def _leaves(name: str, value: Any, domains: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}/{key}", part, domains)
    elif isinstance(value, list):
        names = domains if len(value) == len(domains) else range(len(value))
        for key, part in zip(names, value, strict=True):
            yield from _leaves(f"{name}/{key}", part, domains)
    else:
        yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
