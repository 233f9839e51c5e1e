"""Every method: a check that all of them train, not a ranking.

Default hyperparameters, every domain held out once, one trial. At the embedded scale, schedules that start at 500 to
2,500 steps start earlier, because the runs are shorter, and the penalty of Fishr is 100, as in the demo. Modifiers are
applied to ERM. Algorithms of other packages are included if --algorithms names them.
"""

from collections.abc import Sequence
from dataclasses import replace

from pogm.algorithms import all_algorithms
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.experiments.base import Exhibit, Plan, Row, Scale
from pogm.experiments.results import averages, details
from pogm.experiments.trials import plan_search
from pogm.modifiers import all_modifiers


def plan(scale: Scale) -> Plan:
    """Return the first configuration of every algorithm, and of ERM with every modifier."""
    once = replace(scale, trials=1)
    rows = [*map(Row, all_algorithms()), *map(Row, scale.others), *(Row("ERM", (name,)) for name in all_modifiers())]
    return {row: plan_search(once, row, configurations=1) for row in rows}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return averages, and the results of every domain."""
    return [*averages(runs, [TRAINING_DOMAIN]), *details(runs, [TRAINING_DOMAIN])]
