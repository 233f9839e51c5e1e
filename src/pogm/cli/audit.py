"""``pogm audit``: arithmetic and plausibility of published tables."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm._system.errors import FINDINGS
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option

PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Audit(Command):
    """Check a published table: means, ranks, marks, copied rows, and values that contradict the stated selection."""

    examples: ClassVar[str] = """
pogm audit table.csv                               a table of yours or of a paper, compared with DomainBed's tables
pogm audit table.csv ablation.csv --selection test-domain
pogm audit table.csv --against other_paper.csv --json findings.json
pogm audit paper                                   the five tables of the POGM paper, as an example"""
    notes: ClassVar[str] = (
        "A CSV file has one line per method: algorithm,PACS,PACS_stderr,VLCS,VLCS_stderr,avg. Numbers are in percent,\n"
        "as printed. Optional columns: DATASET_mark (best, second or below_erm), rank_arith_mean, rank_geom_mean and\n"
        "rank_median over datasets, and selection. Or it has one line per cell: algorithm,dataset,value,stderr,mark,\n"
        'selection; the average is the dataset "avg". A row "NAME, setting = value" has the result of NAME with this\n'
        "setting only; the row NAME has the result of the search over all settings.\n"
        f"Exit code: 0 if there is nothing but notes, {FINDINGS} if there are findings, 3 if a table cannot be read."
    )

    tables: tuple[str, ...] = argument(
        "CSV files, or the word paper for the embedded tables of the POGM paper.", metavar="TABLE"
    )
    against: tuple[Path, ...] = option(
        "CSV files of other publications, which rows may be copied from (default: DomainBed's tables only).",
        (),
        metavar="FILE",
    )
    selection: Literal["training-domain", "test-domain", "leave-one-domain-out"] | None = option(
        "Model selection that the tables state, unless a column has it (default: not stated).", None
    )
    baseline: str = option("Row that the mark below_erm compares with.", "ERM")

    output: Output = group(Output)

    def run(self) -> int:
        """Print the findings; the exit code is `FINDINGS` if there are any besides notes."""
        from pogm.benchmark.results.audit import CHECKS, audit
        from pogm.benchmark.results.audit_tables import paper_tables, read_table, reference_tables

        is_paper = PAPER in self.tables
        tables = [*paper_tables()] if is_paper else []
        tables += [t for name in self.tables if name != PAPER for t in read_table(Path(name), self.selection or "")]
        sources = ("domainbed", "official", "official-log") if is_paper else ("domainbed",)
        references = [table for name in sources for table in reference_tables(name)]
        references += [table for path in self.against for table in read_table(path)]
        findings = audit(tables, references, self.baseline)
        serious = [finding for finding in findings if not finding.is_note]

        def show_text() -> None:
            for check, meaning in CHECKS.items():
                chosen = [finding for finding in findings if finding.check == check]
                if chosen:
                    print_line(f"{check}{' (note)' if chosen[0].is_note else ''}: {meaning}")
                for finding in chosen:
                    print_line(f"  {finding.table}: {finding.where}: {finding.text}.")
            rows, notes = sum(len(table.rows) for table in tables), len(findings) - len(serious)
            print_line(f"Rows: {rows}, tables: {len(tables)}, findings: {len(serious)}, notes: {notes}.")

        listed = [asdict(finding) | {"is_note": finding.is_note} for finding in findings]
        checked = [{"title": table.title, "selection": table.selection, "rows": len(table.rows)} for table in tables]
        self.output.show("audit", {"tables": checked, "findings": listed}, show_text)
        return FINDINGS if serious else 0


COMMAND = Audit
