"""ERM++ part by part: warm-up of the classifier and average of the weights.

Rows: ERM++ with both parts, ERM++ without one of them, and ERM, which has none. All rows have the same data, first
weights and minibatches. A part begins or ends after at most a third of a run, so that it has an effect in short runs.
"""

from dataclasses import replace

from pogm.experiments import paired
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.results import paired_tables

ROWS = (
    Row("ERMPlusPlus", name="ERM++"),
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
