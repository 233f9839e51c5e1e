"""``pogm report``: tables and the HTML report of finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm.cli.json_output import Output
from pogm.cli.options import MOST_STEPS
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Print the tables of finished runs and write the HTML report."""

    examples: ClassVar[str] = """
pogm report runs/demo
pogm report runs --format csv > table.csv
pogm report runs domainbed/sweep                   also the runs of a DomainBed sweep
pogm report runs --against paper                   differences to the tables of the paper"""

    folders: tuple[Path, ...] = argument(
        "Folders that contain runs of pogm or of DomainBed, at any depth.", metavar="FOLDER"
    )
    format: Literal["text", "csv", "json", "latex", "html"] = option(
        "Format of the tables on standard output; html writes only the report.", "text"
    )
    out: Path | None = option("Folder for the HTML report (default: the first folder).", None, metavar="FOLDER")
    oracle_early_stop: int | None = option(
        "Print only the test-domain selection with early stopping after this minibatch (default: all selections).",
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
        from pogm.benchmark.results.records import read_runs
        from pogm.benchmark.results.selection import SELECTIONS, oracle_early_stop
        from pogm.cli.tables import find_tables, show_tables, write_html

        runs = read_runs(*self.folders)
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


COMMAND = Report
