"""``pogm export``: finished runs in the format of another benchmark."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm.cli.parser import Command, argument, option


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write finished runs as a DomainBed sweep, which its collector can read."""

    examples: ClassVar[str] = "pogm export runs --layout domainbed --out runs-for-domainbed"

    folders: tuple[Path, ...] = argument("Folders that contain runs, at any depth.", metavar="folder")
    layout: Literal["domainbed"] = option("Format to write.", "domainbed")
    out: Path = option("New folder; it will contain one job folder for each run.", metavar="FOLDER")

    def run(self) -> int:
        """Write the job folders."""
        from pogm.benchmark.domainbed import export_domainbed
        from pogm.benchmark.results.records import read_runs

        jobs = export_domainbed(read_runs(*self.folders), self.out)
        print(f"{len(jobs)} job folder{'s' * (len(jobs) > 1)} in {self.out}", file=sys.stderr)
        return 0


COMMAND = Export
