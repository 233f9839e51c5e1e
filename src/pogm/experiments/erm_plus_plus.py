"""ERM++ part by part: warm-up of the classifier and average of the weights.

Rows: ERM++ with both parts, ERM++ without one of them, and ERM, which has none. All rows have the same data, first
weights and minibatches. A part begins or ends after at most a third of a run, so that it has an effect in short runs.
"""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.experiments import paired
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.controls import control_table
from pogm.experiments.results import paired_tables

WHOLE = Row("ERMPlusPlus", name="ERM++")
ROWS = (
    WHOLE,
    Row("ERMPlusPlus", settings=("warm_up=false",), name="ERM++ without warm-up"),
    Row("ERMPlusPlus", settings=("average=false",), name="ERM++ without average"),
    ERM,
)


def plan(scale: Scale) -> Plan:
    """Return the trials of every row, with the same seeds."""
    steps = paired.paired_scale(scale).steps
    latest = scale.latest_start if steps is None else min(scale.latest_start or steps, steps // 3)
    return paired.plan_rows(replace(scale, latest_start=latest), ROWS)


exhibits = paired_tables


def parts_table(runs: Sequence[Run]) -> Table:
    """Return the table of one dataset: accuracies, and differences to ERM and to ERM++ with both parts."""
    return control_table(runs, {row.name: WHOLE.name for row in ROWS}, "parts of ERM++", WHOLE.name)
