"""Pages of the evidence in Markdown: tables that are computed from the records."""

import re
from collections.abc import Callable, Iterator, Sequence

from pogm._system.errors import UsageError, unknown_name_error
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.benchmark.results.table import Table
from pogm.evidence.archives import Complete
from pogm.evidence.sweeps import ALL_SWEEPS, FOLDERS, SWEEPS, VARIANT_SWEEPS, Sweep
from pogm.evidence.tables import (
    LEAST_SEEDS,
    PRINTED,
    SELECTIONS,
    count_seeds,
    domain_table,
    evidence_table,
    findings_table,
    published_table,
    search_table,
    seed_table,
)
from pogm.experiments.erm_plus_plus import parts_table
from pogm.experiments.fewer_domains import domain_count_table
from pogm.experiments.fewer_samples import sample_count_table
from pogm.experiments.figure4 import agreement_table
from pogm.experiments.pogm_ablation import ablation_table
from pogm.experiments.pogm_variants import success_table, variant_table
from pogm.experiments.soups import soup_table

TABLES: dict[str, Callable[[Sweep, list[Run]], Table]] = {  # by the kind of the mark
    "evidence": evidence_table,
    "seeds": lambda _, runs: seed_table(runs),
    "ablation": lambda _, runs: ablation_table(runs),
    "agreement": lambda sweep, runs: agreement_table(runs, sweep.dataset),
    "erm_plus_plus": lambda _, runs: parts_table(runs),
    "fewer_domains": lambda _, runs: domain_count_table(runs),
    "fewer_samples": lambda _, runs: sample_count_table(runs),
    "search": search_table,
    "soups": lambda _, runs: soup_table(runs),
    "variants": lambda _, runs: variant_table(runs),
}
SELECTED_TABLES = {"domains": domain_table, "published": published_table, "search": domain_table}  # with a selection
FINDINGS = "findings"  # of all sweeps of a scale
SUCCESSES = "successes"  # variants of POGM on all datasets
MARK = re.compile(
    rf"<!-- records: (?P<kind>{'|'.join({*TABLES, *SELECTED_TABLES, FINDINGS, SUCCESSES})})"
    r"(?:, (?P<sweep>\w+)(?:, (?P<selection>[\w-]+))?)? -->\n"
)
TABLE = re.compile(r"\n(?:\|.*\n)*")


def update_tables(text: str, complete: Complete) -> str:
    """Return a page in Markdown with the tables after its marks computed again from the records.

    A mark is a comment in a line of its own, such as ``<!-- records: evidence, SWEEP -->``. The table follows after an
    empty line. The rest of the page stays as it is. Marks begin with the kind of the table:

    - one of `TABLES`, followed by the name of a sweep;
    - one of `SELECTED_TABLES`, followed by the name of a sweep and a selection;
    - ``findings``, followed by the name of a scale: one line for each dataset;
    - ``successes``: variants of POGM on all datasets.

    Args:
        text: The page.
        complete: Runs of the complete rows of every sweep.

    Raises:
        UsageError: If a mark names no sweep, or one without complete rows.
    """
    parts, end = [], 0
    for mark in MARK.finditer(text):
        table = TABLE.match(text, mark.end())
        parts += [text[end : mark.end()], "\n", *_marked_table(mark, complete)]
        end = table.end() if table else mark.end()
        parts += [] if text[end : end + 1] in ("", "\n") else ["\n"]
    return "".join([*parts, text[end:]])


def new_section(sweep: Sweep, runs: Sequence[Run]) -> str:
    """Return the section of a sweep for a page in Markdown: what was run, marks and tables."""
    (steps,) = {run.trial["steps"] for run in runs}
    (precision,) = {run.trial["precision"] for run in runs}
    domains = "Accuracy on each held-out domain"
    what = f"{sweep.network}, {steps:,} minibatches, {precision}, {count_seeds(runs)}"
    text = f"""
## {sweep.title}

{what}, default hyperparameters, every domain held out. Accuracy on the
held-out domain in percent, averaged over domains: mean ± standard error over seeds. *Difference to ERM* is paired by
held-out domain and seed, in percentage points. *95 %, corrected* is its interval by Student's t and Bonferroni for the
{sweep.comparisons} planned comparisons; ≠ marks an interval that excludes 0. *Detectable* is the smallest effect that
a row would show with a probability of about 80 %. Rows with fewer than {LEAST_SEEDS} seeds (n) have neither. *Last
step* is test-domain validation (oracle): with one configuration it chooses nothing.

<!-- records: evidence, {sweep.name} -->

{_fold("Variance between seeds, training-domain validation", "seeds", sweep.name)}
{_fold(f"{domains}, training-domain validation", "domains", sweep.name, TRAINING_DOMAIN.name)}
{_fold(f"{domains} after the last step (test-domain validation)", "domains", sweep.name, TEST_DOMAIN.name)}
Command: `{sweep.command()}`
"""
    return update_tables(text, {sweep: list(runs)})


def _fold(title: str, *mark: str) -> str:
    """Return the mark of a table that a click on its title opens."""
    return f"<details>\n<summary>{title}</summary>\n\n<!-- records: {', '.join(mark)} -->\n\n</details>\n"


def _marked_table(mark: re.Match[str], complete: Complete) -> Iterator[str]:
    kind, selection = mark["kind"], mark["selection"]
    if kind == SUCCESSES:
        yield from _markdown(success_table({sweep.dataset: complete.get(sweep, []) for sweep in VARIANT_SWEEPS}))
        return
    if kind == FINDINGS:
        scale = {sweep: complete[sweep] for sweep in SWEEPS if sweep.scale_name == mark["sweep"] and sweep in complete}
        yield from _markdown(findings_table(scale))
        return
    experiments = {folder: experiment for experiment, folder in FOLDERS.items()}
    experiment = experiments.get(kind, "evidence")
    names = {sweep.name: sweep for sweep in ALL_SWEEPS if sweep.experiment == experiment}
    if mark["sweep"] not in names:
        raise unknown_name_error("a sweep", str(mark["sweep"]), names)
    sweep = names[mark["sweep"]]
    runs = complete.get(sweep)
    if not runs:
        raise UsageError(f"Expected records with a complete row of {mark['sweep']}; found none. Pack them in results/.")
    if selection is None and kind in TABLES:
        yield from _markdown(TABLES[kind](sweep, runs), PRINTED if kind == "evidence" else None)
    elif selection in SELECTIONS and kind in SELECTED_TABLES:
        yield from _markdown(SELECTED_TABLES[kind](runs, SELECTIONS[selection]))
    else:
        raise unknown_name_error("a selection", str(selection), SELECTIONS if kind in SELECTED_TABLES else ())


def _markdown(table: Table, columns: int | None = None) -> Iterator[str]:
    """Yield the lines of a table, as they are printed, without marks of the best."""
    shown = table.columns[:columns]
    heads = ["", *(column.heading.replace("-90%", "−90%") for column in shown)]  # a minus sign, as in the text
    yield f"| {' | '.join(heads).lstrip()} |\n".replace("|  |", "| |", 1)
    yield f"|{'---|' * len(heads)}\n"
    for row in table.rows:
        yield f"| {' | '.join([row.label, *table.row_texts(row)[:columns]])} |\n"
