"""Table 4: POGM by its number of inner steps E.

How many minibatches each domain's copy learns from between two updates of the shared model. The runs of one search,
split by that value; whatever else was drawn with it stays, so rows differ in more than the value they are named after.
"""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments.ablation import ablated, search
from pogm.experiments.base import Exhibit, Plan, Scale


def plan(scale: Scale) -> Plan:
    """The searches that Tables 3 to 5 share."""
    return search(scale)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """One row for each value."""
    return ablated(runs, "inner_steps", "E")
