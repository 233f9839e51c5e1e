"""``pogm list``: names that other commands accept."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pogm.cli.parser import Command, argument


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List algorithms, datasets, modifiers or networks with their defaults; or trackers, metrics or experiments."""

    examples: ClassVar[str] = "pogm list algorithms\npogm list experiments"

    what: Literal["algorithms", "datasets", "modifiers", "networks", "trackers", "metrics", "experiments"] = argument(
        "What to list."
    )

    def run(self) -> int:
        """Print the list."""
        from pogm.benchmark.catalogue import CATALOGUES
        from pogm.experiments import catalogue

        for line in (CATALOGUES | {"experiments": catalogue})[self.what]():
            print(line)
        return 0


COMMAND = List
