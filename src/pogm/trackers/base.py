"""Base class of trackers, and the names of the numbers that they receive."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]  # content of the trial.json of a run
Record = Mapping[str, Any]  # one line of the records.jsonl of a run


class Tracker:
    """Tracker of one run. An exception in a tracker does not affect the run."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Start the run in this folder, or continue it if it was started before."""

    def record(self, record: Record) -> None:
        """Log an evaluation, unless this process or an earlier one has logged it."""

    def end(self, status: str) -> None:
        """End the run; the status is "done", "interrupted", "diverged" or "failed"."""


def scalars(record: Record, config: Config) -> dict[str, float]:
    """Return the numbers of a record by name, such as accuracy/out/75, metrics/loss and metrics/cosine/30.

    If a record has a mark (`swad` for averaged weights), the mark is a prefix of its names, because another record has
    the same step.
    """
    domains = config["domains"]
    trained = [name for number, name in enumerate(domains) if number not in config["trial"]["test_domains"]]
    numbers: dict[str, Any] = {name: record.get(name) for name in ("epoch", "seconds_per_step", "memory_gb")}
    for score in ("accuracy", "r2", "rmse", "mae"):  # the last three are those of a regression
        numbers |= _flatten(score, record.get(score), domains)
    numbers |= _flatten("metrics", record.get("metrics"), trained)
    return {add_mark(name, record): float(value) for name, value in numbers.items() if _is_number(value)}


def add_mark(name: str, record: Record) -> str:
    """Return the name with the marks of the record as a prefix, such as swad/accuracy."""
    return "/".join([*(mark for mark, value in record.items() if value is True), name])


def run_title(config: Config) -> str:
    """Return the title of a run: method, dataset and test domains."""
    dataset = config["trial"]["dataset"]
    held_out = ", ".join(config["domains"][number] for number in config["trial"]["test_domains"])
    return f"{config['label']} on {dataset.get('title', dataset['name'])}, held out {held_out}"


def _flatten(name: str, value: Any, domains: Sequence[str]) -> dict[str, Any]:
    """Return the leaves of a value by path; items of a list with one item per domain have the domains' names."""
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
