"""``pogm list``: names that other commands accept."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pogm._system.errors import UsageError
from pogm.cli.parser import Command, argument, option


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List algorithms, datasets, modifiers or networks with their defaults; or trackers, metrics or experiments."""

    examples: ClassVar[str] = "pogm list algorithms\npogm list algorithms --against domainbed\npogm list experiments"

    what: Literal["algorithms", "datasets", "modifiers", "networks", "trackers", "metrics", "experiments"] = argument(
        "What to list."
    )
    against: Literal["domainbed"] | None = option(
        "List the methods of DomainBed, and the algorithm that implements each (default: list all algorithms).", None
    )

    def run(self) -> int:
        """Print the list."""
        from pogm.benchmark.catalogue import CATALOGUES, domainbed
        from pogm.experiments import catalogue

        if self.against is not None:
            if self.what != "algorithms":
                raise UsageError(f"Expected --against only after algorithms; found it after {self.what}. Leave it out.")
            print("\n".join(domainbed()))
            return 0
        for line in (CATALOGUES | {"experiments": catalogue})[self.what]():
            print(line)
        return 0


COMMAND = List
