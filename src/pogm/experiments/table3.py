"""Table 3: POGM by its meta learning rate α.

How far the shared model goes along the direction that POGM found. The runs of one search, split by that value;
whatever else was drawn with it stays, so rows differ in more than the value they are named after.
"""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.published import Note, Source, published
from pogm.benchmark.results.records import Run
from pogm.experiments.ablation import ablated, search
from pogm.experiments.base import Exhibit, Plan, Scale

GRID = (
    "The paper prints 0.01 where its code searches 0.05; four training-domain cells of that row equal those that its "
    "authors logged for 0.05."
)


def paper() -> Source:
    """The paper's results, with the row that Table 3 prints as 0.01 also under 0.05, which its code searches."""
    source = published("paper")
    meant = {f"{name}, meta_lr = 0.01": f"{name}, meta_lr = 0.05" for name in ("POGM", "OfficialPOGM")}
    again = (replace(one, algorithm=meant[one.algorithm]) for one in source.results if one.algorithm in meant)
    note = Note(
        "Beside meta_lr = 0.05 stands the row that the paper prints as 0.01. " + GRID, frozenset(meant.values())
    )
    return replace(source, results=(*source.results, *again), notes=(*source.notes, note))


def plan(scale: Scale) -> Plan:
    """The searches that Tables 3 to 5 share."""
    return search(scale)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """One row for each value."""
    return ablated(runs, "meta_lr", "α", GRID, paper=paper())
