"""``pogm status``: state of the runs of a sweep."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pogm.cli.parser import Command, argument


@dataclass(frozen=True, kw_only=True)
class Status(Command):
    """Count the runs of a sweep that are done, running, interrupted, failed or waiting."""

    examples: ClassVar[str] = "pogm status runs/sweep"

    folder: Path = argument("Folder of a sweep.")

    def run(self) -> int:
        """Print a line for each algorithm and dataset, and the total."""
        from pogm.benchmark.runs.directory import STATES, load_sweep, status

        counts = status(load_sweep(self.folder), self.folder)
        total: Counter[str] = Counter()
        for (dataset, label), found in counts.items():
            total += found
            print(f"{dataset}  {label}  {', '.join(f'{found[state]} {state}' for state in STATES if found[state])}")
        print(f"{total.total()} runs: {', '.join(f'{total[state]} {state}' for state in STATES)}")
        return 0


COMMAND = Status
