"""Figure 5: the cosine with each source domain, and the test accuracy."""

from collections.abc import Sequence
from functools import partial

from pogm.benchmark.results.measurements import Measured, mean
from pogm.benchmark.results.record_file import Record, accuracy
from pogm.benchmark.results.records import Run
from pogm.experiments import measured
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.report.figure import Figure, Panel, y_extent

PRINTED = ("VLCS",)  # dataset of the figure in the paper
EXPLANATION = (
    "The cosine of a step h and the step hᵢ of one training domain alone, cos(hᵢ, h): a method that treats its "
    "domains equally has the same curve in every panel. The last panel shows the accuracy on the held-out domain, "
    "which no method has seen."
)


def plan(scale: Scale) -> Plan:
    """Return the runs that Figures 2 to 5 share."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return a figure for each dataset: a panel for each training domain, and one for the accuracy."""
    return [figure(runs, dataset, scale) for dataset in scale.printed(PRINTED)]


def figure(runs: Sequence[Run], dataset: str, scale: Scale) -> Figure:
    """Return the figure of one dataset."""
    held_out, *sources = scale.dataset(dataset).domains
    by_source = {
        f"source {name}": measured.curves(runs, dataset, partial(mean_cosine, index))
        for index, name in enumerate(sources)
    }
    y_range = y_extent(line for lines in by_source.values() for line in lines)  # the same in all panels, for comparison
    panels = [Panel(title, lines, y_label="cos(hᵢ, h)", y_range=y_range) for title, lines in by_source.items() if lines]
    if lines := measured.curves(runs, dataset, test_accuracy):
        panels.append(Panel(f"held out: {held_out}", lines, y_label="accuracy, %"))
    title = f"{dataset}: the cosine with each source domain, and the test accuracy"
    notes = (measured.AVERAGED, measured.note(runs, (dataset,), scale))
    return Figure(f"figure5_{dataset.lower()}", title, tuple(panels), EXPLANATION, notes)


def mean_cosine(index: int, record: Record, since: Measured) -> float:
    """Return the mean over rounds of cos(h_i, h) for the training domain of this index."""
    return mean(cosines[index] for cosines in since.cosine)


def test_accuracy(record: Record, since: Measured) -> float:
    """Return the accuracy in percent on the larger part of the held-out domain, as in the tables."""
    return 100 * accuracy(record, "in", measured.HELD_OUT)
