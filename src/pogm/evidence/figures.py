"""Figures of the evidence: ranks of the methods, and differences to ERM in one sweep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from pogm.benchmark.results.critical_difference import RankComparison, compare_ranks
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Choice
from pogm.evidence.archives import Complete
from pogm.evidence.sweeps import Sweep
from pogm.evidence.tables import LEAST_SEEDS, first_cells, tested_interval
from pogm.experiments.base import ERM
from pogm.experiments.centre import ERM_CENTRE_KAPPA_0, ERM_CENTRE_RESCALED, MEAN_CENTRE
from pogm.experiments.results import POINTS
from pogm.report import figure
from pogm.report.figure import Figure, Panel, Point

CLOSE = 5  # percentage points: rows with wider intervals have a panel of their own, so that the others can be read
SHORT_NAMES = {  # of long names, in figures
    ERM_CENTRE_KAPPA_0.name: "POGM, κ = 0",
    ERM_CENTRE_RESCALED.name: "POGM, rescaled",
    MEAN_CENTRE.name: "POGM, mean centre",
}
RANKS = (
    "Methods are ranked in every block: 1 is the best. A dot is the mean rank. The bar is half of Nemenyi's critical "
    "difference to both sides (Demšar, 2006; 5 %): two methods differ if their bars do not overlap."
)


def seed_blocks(runs: Sequence[Run]) -> list[dict[str, float]]:
    """Return the mean over held-out domains of every method, for each seed of one sweep that all methods have."""
    blocks = _mean_accuracies(runs, lambda choice: choice.trial_seed)
    most = max(map(len, blocks))
    return [block for block in blocks if len(block) == most]


def domain_blocks(complete: Complete) -> list[dict[str, float]]:
    """Return the mean over seeds for each held-out domain of every sweep, for the methods that all sweeps have."""
    shared = set.intersection(*({run.label for run in runs} for runs in complete.values()))
    blocks = []
    for runs in complete.values():
        blocks += _mean_accuracies((run for run in runs if run.label in shared), lambda choice: choice.domain)
    return blocks


def _mean_accuracies(runs: Iterable[Run], block_of: Callable[[Choice], int]) -> list[dict[str, float]]:
    """Return the mean accuracy of every method in every block, under training-domain validation."""
    found: dict[int, dict[str, list[float]]] = {}
    for choice in TRAINING_DOMAIN(runs):
        if choice.accuracy is not None:
            found.setdefault(block_of(choice), {}).setdefault(choice.label, []).append(choice.accuracy)
    return [{label: fmean(values) for label, values in block.items()} for block in found.values()]


def rank_figure(name: str, title: str, blocks: Sequence[Mapping[str, float]], what: str) -> Figure:
    """Return a critical-difference diagram: mean ranks with half of the critical difference to both sides.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        blocks: Values by method, see `compare_ranks`.
        what: What a block is, for the notes.
    """
    found = compare_ranks(blocks)
    half, last = found.difference / 2, len(found.ranks)
    marks = tuple(
        figure.Row(
            SHORT_NAMES.get(label, label),
            (Point(number, rank, None, found.blocks),),
            int(label == ERM.name),
            (max(1.0, rank - half), min(float(last), rank + half)),
        )
        for number, (label, rank) in enumerate(found.ranks.items())
    )
    panel = Panel("Mean rank", marks, x_label="mean rank (1 is the best)", reference=found.ranks.get(ERM.name))
    return Figure(name, title, (panel,), RANKS, (_rank_note(found, what),))


def _rank_note(found: RankComparison, what: str) -> str:
    groups = found.groups()
    same = "all" if groups and len(groups[0]) == len(found.ranks) else f"{len(groups)} groups"
    return (
        f"{len(found.ranks)} methods, {found.blocks} blocks ({what}); critical difference: {found.difference:.1f}. "
        f"Methods that do not differ from each other: {same}. The dashed line is the rank of ERM."
    )


def difference_figure(sweep: Sweep, runs: Sequence[Run]) -> Figure:
    """Return the differences to ERM, with standard errors and corrected intervals."""
    table = differences(runs, ERM.name)
    gains = {label: gain for label, gain in first_cells(table).items() if label != ERM.name}
    rows = [
        figure.Row(
            SHORT_NAMES.get(label, label),
            (Point(number, gain.mean, gain.stderr, gain.n),),
            0,
            tested_interval(gain, sweep.comparisons),
        )
        for number, (label, gain) in enumerate(sorted(gains.items(), key=lambda item: -(item[1].mean or 0.0)))
        if gain.mean is not None and gain.stderr is not None
    ]
    close = [row for row in rows if row.span and max(map(abs, row.span)) <= CLOSE]
    panels = {
        f"Intervals within ± {CLOSE}": close,
        "Wider intervals": [row for row in rows if row.span and row not in close],
        f"Fewer than {LEAST_SEEDS} seeds: no interval": [row for row in rows if not row.span],
    }
    return Figure(
        f"differences_{sweep.name}",
        "Differences to ERM, training-domain validation",
        tuple(Panel(title, tuple(found), x_label=POINTS, reference=0.0) for title, found in panels.items() if found),
        "A dot is the mean difference, a thick bar its standard error, a thin bar the corrected 95 % interval.",
        (table.footnotes[0],),
    )
