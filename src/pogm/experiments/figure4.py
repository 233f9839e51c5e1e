"""Figure 4: the average angle and the norm difference over training."""

from collections.abc import Sequence
from itertools import chain

from pogm.benchmark.results.measurements import Measured, mean
from pogm.benchmark.results.records import Record, Run
from pogm.experiments import measured
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.report.figure import Figure, Panel

PRINTED = ("VLCS", "PACS")  # the paper's
READING = (
    "Left of each pair: how far a step h agrees with what each training domain alone would have done, cos(hᵢ, h), "
    "averaged over domains; higher is more alike. Right: how far the domains' own copies of the model end from the "
    "shared one, ‖θᵢ − θ⁺‖², averaged over domains; lower is nearer. Lengths compare with care: a method that takes "
    "longer or shorter steps than a domain alone would is further away for that reason too."
)


def plan(scale: Scale) -> Plan:
    """The runs that all figures of measurements share."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Two panels for each dataset."""
    panels, datasets = [], measured.datasets(scale, PRINTED)
    for dataset in datasets:
        for value, label in ((angle, "cos(hᵢ, h)"), (difference, "‖θᵢ − θ⁺‖²")):
            if lines := measured.curves(runs, dataset, value):
                panels.append(Panel(dataset, lines, y_label=label))
    title = "The average angle and the norm difference over training"
    notes = (measured.AVERAGED, measured.note(runs, datasets, scale))
    return [Figure("figure4", title, tuple(panels), READING, notes)]


def angle(record: Record, since: Measured) -> float:
    """The mean of cos(h_i, h) over domains and rounds."""
    return mean(chain.from_iterable(since.angle))


def difference(record: Record, since: Measured) -> float:
    """The mean of ‖θ_i − θ⁺‖² over domains and rounds."""
    return mean(chain.from_iterable(since.difference))
