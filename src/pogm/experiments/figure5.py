"""Figure 5: the angle to each source domain, and the test accuracy."""

from collections.abc import Sequence
from functools import partial

from pogm.benchmark.results.measurements import Measured, mean
from pogm.benchmark.results.records import Record, Run, accuracy
from pogm.data.datasets import dataset_class
from pogm.experiments import measured
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.report.axes import extent
from pogm.report.figure import Figure, Panel

PRINTED = ("VLCS",)  # the paper's
READING = (
    "How far a step h agrees with what one training domain alone would have done, cos(hᵢ, h): a method that serves its "
    "domains alike has the same curve in every panel. Last, the accuracy on the domain that was held out, which no "
    "method saw."
)


def plan(scale: Scale) -> Plan:
    """The runs that all figures of measurements share."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """A figure for each dataset: a panel for each training domain, and one for the accuracy."""
    return [figure(runs, dataset, scale) for dataset in measured.datasets(scale, PRINTED)]


def figure(runs: Sequence[Run], dataset: str, scale: Scale) -> Figure:
    """The figure of one dataset."""
    held_out, *sources = dataset_class(dataset).domains
    by_source = {
        f"source {name}": measured.curves(runs, dataset, partial(angle, place)) for place, name in enumerate(sources)
    }
    y_range = extent([line for lines in by_source.values() for line in lines])  # one, for they are to be compared
    panels = [Panel(title, lines, y_label="cos(hᵢ, h)", y_range=y_range) for title, lines in by_source.items() if lines]
    if lines := measured.curves(runs, dataset, tested):
        panels.append(Panel(f"held out: {held_out}", lines, y_label="accuracy, %"))
    title = f"{dataset}: the angle to each source domain, and the test accuracy"
    notes = (measured.AVERAGED, measured.note(runs, (dataset,), scale))
    return Figure(f"figure5_{dataset.lower()}", title, tuple(panels), READING, notes)


def angle(place: int, record: Record, since: Measured) -> float:
    """The mean over rounds of cos(h_i, h) for one training domain."""
    return mean(angles[place] for angles in since.angle)


def tested(record: Record, since: Measured) -> float:
    """The accuracy in percent on the larger part of the held-out domain, as in the tables."""
    return 100 * accuracy(record, "in", measured.HELD_OUT)
