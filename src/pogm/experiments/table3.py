"""Table 3: POGM by its meta learning rate α.

How far the shared model goes along the direction that POGM found. The runs of one search, split by that value;
whatever else was drawn with it stays, so rows differ in more than the value they are named after.
"""

from collections.abc import Sequence

from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments.ablation import ablated, search
from pogm.experiments.base import Exhibit, Scale

GRID = (
    "The paper prints 0.01 where its code searches 0.05; four training-domain cells of that row equal those that its "
    "authors logged for 0.05."
)


def plan(scale: Scale) -> list[Trial]:
    """POGM's search, which Tables 3 to 5 share."""
    return search(scale)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """One row for each value."""
    return ablated(runs, "meta_lr", "α", GRID)
