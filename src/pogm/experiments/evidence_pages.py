"""Pages of the evidence: tables in Markdown pages, the report, and the leaderboard."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pogm._system.errors import UsageError, unknown_name_error
from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Row, Table
from pogm.experiments.centre import ERM
from pogm.experiments.evidence_tables import (
    LEAST_SEEDS,
    PRINTED,
    Complete,
    difference_figure,
    domain_blocks,
    domain_table,
    evidence_table,
    published_table,
    rank_figure,
    search_table,
    seed_blocks,
    seed_table,
    tested_interval,
)
from pogm.experiments.fewer_domains import domain_count_table
from pogm.experiments.pogm_ablation import ablation_table
from pogm.experiments.pogm_variants import success_table, variant_table
from pogm.experiments.protocol import ALL_SWEEPS, FOLDERS, VARIANT_SWEEPS, Sweep
from pogm.experiments.results import gain_column
from pogm.report.page import Exhibit, Fold, Section, sentence, write_page

MARK = re.compile(
    r"<!-- records: (?P<kind>evidence|domains|published|seeds|ablation|fewer_domains|search|variants|successes)"
    r"(?:, (?P<sweep>\w+)(?:, (?P<selection>[\w-]+))?)? -->\n"
)
TABLE = re.compile(r"\n(?:\|.*\n)*")
SELECTIONS = {selection.name: selection for selection in (TRAINING_DOMAIN, TEST_DOMAIN)}


# Tables in Markdown.


def update_tables(text: str, complete: Complete) -> str:
    """Return a page in Markdown with the tables after its marks computed again from the records.

    A mark is a comment in a line of its own, such as ``<!-- records: evidence, SWEEP -->``. The table follows after an
    empty line. The rest of the page stays as it is. Marks begin with the kind of the table:

    - ``evidence``, ``seeds``, ``ablation``, ``fewer_domains``, ``search`` or ``variants``, followed by the name of a
      sweep;
    - ``domains`` or ``published``, followed by the name of a sweep and a selection; ``search`` with a selection is the
      table of domains of a search;
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
    what = f"{sweep.network}, {steps:,} minibatches, {precision}, {_seeds(runs)}"
    text = f"""
## {sweep.title}

{what}, default hyperparameters, every domain held out. Accuracy on the
held-out domain in percent, averaged over domains: mean ± standard error over seeds. *Difference to ERM* is paired by
held-out domain and seed, in percentage points. *95 %, corrected* is its interval by Student's t and Bonferroni for the
{sweep.comparisons} planned comparisons; ≠ marks an interval that excludes 0. *Detectable* is the smallest effect that
a row would show with a probability of about 80 %. Rows with fewer than {LEAST_SEEDS} seeds (n) have neither. *Last
step* is test-domain validation (oracle): with one configuration it chooses nothing.

<!-- records: evidence, {sweep.name} -->

Variance between seeds, training-domain validation:

<!-- records: seeds, {sweep.name} -->

Accuracy on each held-out domain, training-domain validation:

<!-- records: domains, {sweep.name}, {TRAINING_DOMAIN.name} -->

The same after the last step (test-domain validation):

<!-- records: domains, {sweep.name}, {TEST_DOMAIN.name} -->

Command: `{sweep.command()}`
"""
    return update_tables(text, {sweep: list(runs)})


def _seeds(runs: Sequence[Run]) -> str:
    """Return the number of seeds of the rows: "5 seeds", or "3 to 5 seeds"."""
    counts = sorted({len({run.trial_seed for run in runs if run.label == label}) for label in labels_of(runs)})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"


def _marked_table(mark: re.Match[str], complete: Complete) -> Iterator[str]:
    if mark["kind"] == "successes":
        yield from _markdown(success_table({sweep.dataset: complete.get(sweep, []) for sweep in VARIANT_SWEEPS}))
        return
    experiments = {folder: experiment for experiment, folder in FOLDERS.items()}
    experiment = experiments.get(mark["kind"], "evidence")
    names = {sweep.name: sweep for sweep in ALL_SWEEPS if sweep.experiment == experiment}
    if mark["sweep"] not in names:
        raise unknown_name_error("a sweep", str(mark["sweep"]), names)
    sweep = names[mark["sweep"]]
    runs = complete.get(sweep)
    if not runs:
        raise UsageError(f"Expected records with a complete row of {mark['sweep']}; found none. Pack them in results/.")
    if mark["kind"] == "evidence":
        yield from _markdown(evidence_table(sweep, runs), PRINTED)
    elif mark["kind"] == "seeds":
        yield from _markdown(seed_table(runs))
    elif mark["kind"] == "ablation":
        yield from _markdown(ablation_table(runs))
    elif mark["kind"] == "fewer_domains":
        yield from _markdown(domain_count_table(runs))
    elif mark["kind"] == "variants":
        yield from _markdown(variant_table(runs))
    elif mark["kind"] == "search" and mark["selection"] is None:
        yield from _markdown(search_table(sweep, runs))
    elif mark["selection"] in SELECTIONS:
        table = published_table if mark["kind"] == "published" else domain_table
        yield from _markdown(table(runs, SELECTIONS[mark["selection"]]))
    else:
        raise unknown_name_error("a selection", str(mark["selection"]), SELECTIONS)


def _markdown(table: Table, columns: int | None = None) -> Iterator[str]:
    """Yield the lines of a table, as they are printed, without marks of the best."""
    shown = table.columns[:columns]
    heads = ["", *(_domain_name(column.heading) for column in shown)]
    yield f"| {' | '.join(heads).lstrip()} |\n".replace("|  |", "| |", 1)
    yield f"|{'---|' * len(heads)}\n"
    for row in table.rows:
        yield f"| {' | '.join([row.label, *table.row_texts(row)[:columns]])} |\n"


def _domain_name(heading: str) -> str:
    return heading.replace("-90%", "−90%")  # a minus sign, as in the text of the pages


# The report and the leaderboard.


def evidence_tables(complete: Complete) -> list[Table]:
    """Return the leaderboard, then the tables of every sweep that has more than ERM."""
    compared = compared_sweeps(complete)
    tables = [leaderboard(compared)] if compared else []
    for sweep, runs in compared.items():
        tables += [
            evidence_table(sweep, runs),
            *(domain_table(runs, one) for one in SELECTIONS.values()),
            seed_table(runs),
        ]
    return tables


class Signs(NamedTuple):
    """On how many datasets the corrected 95 % interval of the difference to ERM is above 0, contains 0, is below 0."""

    better: int = 0
    tied: int = 0
    worse: int = 0


def leaderboard(complete: Complete) -> Table:
    """Return all methods against all sweeps: paired differences to ERM, and how many of them differ from 0.

    The method with the largest mean difference is first.
    """
    gains = {sweep.title: _gains(runs) for sweep, runs in complete.items()}
    labels = dict.fromkeys(label for found in gains.values() for label in found)
    signs = count_signs(complete)
    rows = []
    for label in labels:
        found = [by_label.get(label, Estimate()) for by_label in gains.values()]
        known = [gain for gain in found if gain.mean is not None]
        order = fmean(gain.mean for gain in known if gain.mean is not None)
        rows.append((order, Row((*found, *signs[label], len(known), min(gain.n for gain in known)), label)))
    rows.sort(key=lambda row: -row[0])
    return Table(
        title="Leaderboard",
        columns=(
            *(gain_column(title, csv_prefix=f"{title}_") for title in gains),
            *(Column(name, kind="number") for name in (*Signs._fields, "datasets", "seeds")),
        ),
        rows=tuple(row for _, row in rows),
        selection=TRAINING_DOMAIN,
        footnotes=(
            "Paired difference to ERM in accuracy on held-out domains: mean ± standard error over seeds, in percentage "
            "points. Default hyperparameters. seeds: the smallest number of seeds of a difference in the row.",
            "Rows are ordered by the mean of their differences. This is no ranking: rows differ in their datasets, and "
            "most differences are within the noise.",
            "better, tied and worse: on how many datasets the 95 % interval, corrected for the planned comparisons, is "
            "above 0, contains 0, or is below 0. A tie is no proof of equality: see the smallest detectable effects. "
            f"Differences of fewer than {LEAST_SEEDS} seeds are not counted.",
        ),
        row_key="algorithm",
    )


def count_signs(complete: Complete) -> dict[str, Signs]:
    """Return on how many datasets each method is better than ERM, tied with it, and worse. ERM has only zeros."""
    counts: dict[str, Counter[str]] = {}
    for sweep, runs in complete.items():
        for label, gain in _gains(runs).items():
            own = counts.setdefault(label, Counter())
            span = tested_interval(gain, sweep.comparisons)
            if label != ERM.name and span is not None:
                low, high = span
                own["better" if low > 0 else "worse" if high < 0 else "tied"] += 1
    return {label: Signs(**own) for label, own in counts.items()}


def _gains(runs: Sequence[Run]) -> dict[str, Estimate]:
    return {row.key: row.estimates[0] for row in differences(runs, ERM.name).rows}


def write_evidence(complete: Complete, folder: Path, command: str) -> list[Path]:
    """Write the report ``evidence.html`` and ``leaderboard.html``, and return their paths.

    Args:
        complete: Runs of the complete rows of every sweep.
        folder: Folder of the pages.
        command: Command line that makes them.

    Raises:
        UsageError: If no sweep has a complete row besides ERM.
    """
    compared = compared_sweeps(complete)
    if not compared:
        raise UsageError(
            "Expected a sweep of the protocol with complete rows of ERM and another method; found none. See what is "
            "missing: results/PLAN.md"
        )
    facts = {
        "Runs": str(sum(map(len, compared.values()))),
        "Sweeps": ", ".join(f"{sweep.title} ({len(labels_of(runs))} rows)" for sweep, runs in compared.items()),
    }
    board = Section("Leaderboard", (leaderboard(compared),), "Paired differences to ERM in percentage points.")
    sections = [board, *_overall(compared), *(_section(sweep, runs) for sweep, runs in compared.items())]
    lead = [sentence(summary(compared))]
    provenance = {"Runs made with": _made_with(compared)}
    pages = {
        "evidence.html": ("Evidence: which method helps where", sections),
        "leaderboard.html": ("Leaderboard of domain generalization methods", [board]),
    }
    return [
        write_page(folder / name, title, parts, command=command, facts=facts, lead=lead, provenance=provenance)
        for name, (title, parts) in pages.items()
    ]


def summary(complete: Complete) -> str:
    """Return one sentence: how many comparisons with ERM there are, and how many differ from 0."""
    signs = count_signs(complete).values()
    better, tied, worse = (sum(column) for column in zip(*signs, strict=True))
    compared = sum(len(labels_of(runs)) - 1 for runs in complete.values())
    untested = compared - (better + tied + worse)
    datasets = f"{len(complete)} dataset{'s' * (len(complete) > 1)}"
    others = f", and {untested} not tested (fewer than {LEAST_SEEDS} seeds)" if untested else ""
    return (
        f"{compared} comparisons with ERM on {datasets}: {better} better, {worse} worse, {tied} tied (95 %, "
        f"corrected){others}."
    )


def compared_sweeps(complete: Complete) -> dict[Sweep, list[Run]]:
    """Return the sweeps in which ERM and another row are complete."""
    return {sweep: runs for sweep, runs in complete.items() if {ERM.name} < {run.label for run in runs}}


def _overall(complete: Complete) -> Iterator[Section]:
    if len(complete) < 2:
        return
    blocks = domain_blocks(complete)
    if len(blocks[0]) > 1:
        what = "held-out domains of all datasets, means over seeds; domains of one dataset are not independent"
        yield Section("Ranks over all datasets", (rank_figure("ranks", "Ranks over all datasets", blocks, what),))


def _section(sweep: Sweep, runs: Sequence[Run]) -> Section:
    ranks = rank_figure(f"ranks_{sweep.name}", "Critical differences", seed_blocks(runs), "seeds, means over domains")
    exhibits: tuple[Exhibit, ...] = (
        evidence_table(sweep, runs),
        Fold("Differences to ERM", (difference_figure(sweep, runs),), open_if_wide=True),
        Fold("Critical differences", (ranks,)),
        Fold("Variance between seeds", (seed_table(runs),)),
        Fold("Accuracy on every domain", tuple(domain_table(runs, selection) for selection in SELECTIONS.values())),
    )
    text = f"{len(runs)} runs, {_seeds(runs)}, every domain held out, default hyperparameters, {sweep.network}."
    return Section(sweep.title, exhibits, text, sweep.command())


def _made_with(complete: Complete) -> str:
    found = {
        f"{run.provenance.get('device')}, torch {run.provenance.get('torch')}"
        for runs in complete.values()
        for run in runs
    }
    return "; ".join(sorted(found))
