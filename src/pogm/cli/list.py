"""``pogm list``: names that other commands accept."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pogm._system.errors import UsageError
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List algorithms, datasets, modifiers, networks, trackers, metrics or experiments, or describe one of them."""

    examples: ClassVar[str] = """
pogm list algorithms
pogm list algorithms POGM                          one of them: paper, hyperparameters with their meaning, an example
pogm list algorithms --against domainbed             the methods of DomainBed and the algorithms that implement them
pogm list datasets PACS
pogm list experiments"""

    what: Literal["algorithms", "datasets", "modifiers", "networks", "trackers", "metrics", "experiments"] = argument(
        "What to list."
    )
    name: str | None = argument(
        "Describe only this algorithm, dataset, modifier or network, in full (default: list all).",
        None,
        complete="listed",
    )
    against: Literal["domainbed"] | None = option(
        "List the methods of DomainBed, and the algorithm that implements each (default: list all algorithms).", None
    )
    output: Output = group(Output)

    def run(self) -> int:
        """Print the list, or the description of one name."""
        from pogm.benchmark.catalogue import CATALOGUES, domainbed
        from pogm.benchmark.descriptions import DESCRIBED, describe, describe_all, description_lines
        from pogm.experiments import catalogue

        if self.against is not None and (self.what != "algorithms" or self.name is not None):
            found = f"{self.what} {self.name}" if self.name else self.what
            raise UsageError(f"Expected --against only after algorithms; found it after {found}. Leave it out.")
        if self.name is not None:
            if self.what not in DESCRIBED:
                raise UsageError(
                    f"Expected a name only after {', '.join(DESCRIBED)}; found {self.name!r} after {self.what}. "
                    "Leave it out."
                )
            item = describe(self.what, self.name)
            self.output.show("list", {"what": self.what, "item": item}, lambda: _print(description_lines(item)))
            return 0
        if self.against is not None:
            lines = list(domainbed())
            self.output.show("list", {"what": self.against, "items": _items(lines)}, lambda: _print(lines))
            return 0
        lines = list((CATALOGUES | {"experiments": catalogue})[self.what]())
        document: dict[str, Any] = {"what": self.what}
        if self.output.json is not None:
            document["items"] = describe_all(self.what) if self.what in DESCRIBED else _items(lines)
        self.output.show("list", document, lambda: _print(lines))
        return 0


def _print(lines: Any) -> None:
    for line in lines:
        print(line)


def _items(lines: list[str]) -> list[dict[str, str]]:
    """Return lines of a name and a text as items."""
    pairs = [line.strip().split(None, 1) for line in lines if not line.endswith(":")]
    return [{"name": pair[0], "summary": pair[1] if len(pair) > 1 else ""} for pair in pairs]


COMMAND = List
