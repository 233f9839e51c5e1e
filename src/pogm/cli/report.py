"""``pogm report``: tables and the HTML report of finished runs."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm._system.errors import UsageError
from pogm._system.messages import note
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_STEPS
from pogm.cli.parser import Command, argument, group, option

ARCHIVES = ("*.tar.gz", "*/*.tar.gz")  # packed records


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Print the tables of finished runs and write the HTML report."""

    examples: ClassVar[str] = """
pogm report runs/demo
pogm report runs --format csv > table.csv
pogm report runs domainbed/sweep                   also the runs of a DomainBed sweep
pogm report runs --against paper                   differences to the tables of the paper
pogm report results                                the evidence: packed records, compared with ERM, and a leaderboard
pogm report results runs/mine/small/runs           the same with runs of your own method"""
    notes: ClassVar[str] = (
        "A folder with archives (*.tar.gz) of packed records, such as results/ of the repository, gives the report of\n"
        "the evidence: evidence.html and leaderboard.html."
    )

    folders: tuple[Path, ...] = argument(
        "Folders that contain runs of pogm or of DomainBed, at any depth, or archives of records.", metavar="FOLDER"
    )
    format: Literal["text", "csv", "json", "latex", "html"] = option(
        "Format of the tables on standard output; html writes only the report.", "text"
    )
    out: Path | None = option("Folder for the HTML report (default: the first folder).", None, metavar="FOLDER")
    oracle_early_stop: int | None = option(
        "Print only the test-domain validation with early stopping after this minibatch (default: all selections).",
        None,
        metavar="STEP",
        least=0,
        most=MOST_STEPS,
    )
    against: Literal["paper", "domainbed", "official", "official-log"] | None = option(
        "Also print differences to published results; with --format csv, only these (default: none).", None
    )

    output: Output = group(Output)

    def run(self) -> int:
        """Print the tables and write the report."""
        if any(path for folder in self.folders for pattern in ARCHIVES for path in folder.glob(pattern)):
            return self._report_evidence()
        from pogm.benchmark.results.records import read_runs
        from pogm.benchmark.results.run_names import separate_sample_counts
        from pogm.benchmark.results.selection import SELECTIONS, oracle_early_stop
        from pogm.cli.tables import find_tables, show_tables, write_html

        runs = separate_sample_counts(read_runs(*self.folders))
        early = () if self.oracle_early_stop is None else (oracle_early_stop(self.oracle_early_stop),)
        selections = early or SELECTIONS
        if self.format != "html" and not self.output.replaces_text:
            show_tables(runs, self.format, self.against, selections)
        tables = [] if self.output.json is None else find_tables(runs, self.against, selections).to_json()
        report = None
        if self.format in ("text", "html"):
            report = write_html(runs, self.out or self.folders[0], self.against)
        self.output.show("report", {"folders": self.folders, "tables": tables, "report": report})
        return 0

    def _report_evidence(self) -> int:
        """Print the tables of packed records of the evidence, and write its report and leaderboard."""
        from pogm.benchmark.results.table_formats import tables_csv
        from pogm.cli.tables import print_tables
        from pogm.evidence.archives import read_packed, sweeps_with_runs
        from pogm.evidence.leaderboard import evidence_tables, write_evidence

        if self.against is not None or self.oracle_early_stop is not None:
            raise UsageError(
                "Expected no --against and no --oracle-early-stop with packed records; found one. Unpack the records "
                "(tar xzf) to report them like other runs."
            )
        complete = sweeps_with_runs(read_packed(*self.folders))
        tables = evidence_tables(complete)
        if self.format != "html" and not self.output.replaces_text:
            if self.format == "csv":
                print("\n".join(tables_csv([table]) for table in tables), end="")
            else:
                print_tables(tables, self.format)
        pages: list[Path] = []
        if self.format in ("text", "html"):
            pages = write_evidence(complete, self.out or self.folders[0], shlex.join(["pogm", *sys.argv[1:]]))
            for path in pages:
                note(f"Page: {path}")
        values = [table.to_dict() for table in tables]
        self.output.show("report", {"folders": self.folders, "tables": values, "report": next(iter(pages), None)})
        return 0


COMMAND = Report
