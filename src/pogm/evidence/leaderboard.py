"""The report of the evidence and the leaderboard: pages in HTML, and their tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from pogm._system.errors import UsageError
from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.adaptation import adaptation_notes
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Row, Table
from pogm.evidence.archives import Complete, compared_sweeps
from pogm.evidence.figures import difference_figure, domain_blocks, rank_figure, seed_blocks
from pogm.evidence.sweeps import Sweep
from pogm.evidence.tables import (
    LEAST_SEEDS,
    SELECTIONS,
    Signs,
    count_seeds,
    count_signs,
    domain_table,
    evidence_table,
    first_cells,
    seed_table,
)
from pogm.experiments.base import ERM
from pogm.experiments.results import gain_column
from pogm.report.page import Exhibit, Fold, Section, render, sentence, write_page


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


def leaderboard(complete: Complete) -> Table:
    """Return all methods against all sweeps: paired differences to ERM, and how many of them differ from 0.

    Methods with results on more datasets come first; of those with equally many, the one with the largest mean
    difference.
    """
    gains = {sweep.title: first_cells(differences(runs, ERM.name)) for sweep, runs in complete.items()}
    labels = dict.fromkeys(label for found in gains.values() for label in found)
    signs = count_signs(complete)
    rows = []
    for label in labels:
        found = [by_label.get(label, Estimate()) for by_label in gains.values()]
        known = [gain for gain in found if gain.mean is not None]
        order = -len(known), -fmean(gain.mean for gain in known if gain.mean is not None)
        rows.append((order, Row((*signs[label], len(known), min(gain.n for gain in known), *found), label)))
    rows.sort(key=lambda row: row[0])
    return Table(
        title="Leaderboard",
        columns=(
            *(Column(name, kind="number") for name in (*Signs._fields, "datasets")),
            Column("seeds", "n", kind="number"),
            *(gain_column(title, csv_prefix=f"{title}_") for title in gains),
        ),
        rows=tuple(row for _, row in rows),
        selection=TRAINING_DOMAIN,
        footnotes=(
            "Columns of datasets: paired difference to ERM in accuracy on held-out domains, mean ± standard error over "
            "seeds, in percentage points. Default hyperparameters.",
            "Better, tied and worse: on how many datasets the 95 % interval, corrected for the planned comparisons, is "
            "above 0, contains 0, or is below 0. A tie is no proof of equality: see the smallest detectable effects. "
            f"Differences of fewer than {LEAST_SEEDS} seeds are not counted.",
            "Datasets: how many have results of the method. n: the smallest number of seeds of these differences.",
            "Rows with results on more datasets come first, then those with a larger mean of their differences. This "
            "is no ranking: most differences are within the noise.",
            *adaptation_notes(run for runs in complete.values() for run in runs),
        ),
        row_key="algorithm",
    )


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
            "Expected a sweep of the evidence with complete rows of ERM and another method; found none. See what is "
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
        write_page(folder / name, render(title, parts, command=command, facts=facts, lead=lead, provenance=provenance))
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


def _overall(complete: Complete) -> Iterator[Section]:
    if len(complete) < 2:
        return
    blocks = domain_blocks(complete)
    if len(blocks[0]) > 1:
        what = "held-out domains of all datasets, means over seeds; domains of one dataset are not independent"
        text = "Only of the methods that have results on all datasets."
        yield Section("Ranks over all datasets", (rank_figure("ranks", "Ranks over all datasets", blocks, what),), text)


def _section(sweep: Sweep, runs: Sequence[Run]) -> Section:
    ranks = rank_figure(f"ranks_{sweep.name}", "Critical differences", seed_blocks(runs), "seeds, means over domains")
    exhibits: tuple[Exhibit, ...] = (
        evidence_table(sweep, runs),
        Fold("Differences to ERM", (difference_figure(sweep, runs),), open_if_wide=True),
        Fold("Critical differences", (ranks,)),
        Fold("Variance between seeds", (seed_table(runs),)),
        Fold("Accuracy on every domain", tuple(domain_table(runs, selection) for selection in SELECTIONS.values())),
    )
    held_out = f"{len(runs)} runs, {count_seeds(runs)}, every domain held out"
    text = f"{held_out}, default hyperparameters, network {sweep.network}."
    return Section(sweep.title, exhibits, text, sweep.command())


def _made_with(complete: Complete) -> str:
    found = {
        f"{run.provenance.get('device')}, torch {run.provenance.get('torch')}"
        for runs in complete.values()
        for run in runs
    }
    return "; ".join(sorted(found))
