"""Table 5: POGM by the radius κ of its ball.

κ is the radius of the ball around the centre, relative to the length of the centre.
The rows are the runs of one search, grouped by this value. The other hyperparameters stay as they were drawn, so rows
differ in more than the value in their name.
"""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments.ablation import ablation_tables, search
from pogm.experiments.base import Exhibit, Scale

plan = search  # the searches that Tables 3 to 5 share


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return tables with one row for each value."""
    return ablation_tables(runs, "kappa", "κ")
