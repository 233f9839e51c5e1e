"""Figure 4: the mean cosine and the norm difference over training."""

from collections.abc import Sequence
from itertools import chain

from pogm.benchmark.results.measurements import Measured, mean
from pogm.benchmark.results.records import Record, Run
from pogm.experiments import measured
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.report.figure import Figure, Panel

PRINTED = ("VLCS", "PACS")  # datasets of the figure in the paper
EXPLANATION = (
    "Left of each pair: the cosine of a step h and the step hᵢ of each training domain alone, cos(hᵢ, h), averaged "
    "over domains; higher is more similar. Right: the squared distance of the copy of the model of each domain to "
    "the shared model, ‖θᵢ − θ⁺‖², averaged over domains; lower is closer. The distance also depends on the length "
    "of a step: a method whose steps are longer or shorter than those of a domain has a larger distance."
)


def plan(scale: Scale) -> Plan:
    """Return the runs that Figures 2 to 5 share."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return a figure with two panels for each dataset."""
    panels, datasets = [], measured.datasets(scale, PRINTED)
    for dataset in datasets:
        for value, label in ((mean_cosine, "cos(hᵢ, h)"), (mean_distance, "‖θᵢ − θ⁺‖²")):
            if lines := measured.curves(runs, dataset, value):
                panels.append(Panel(dataset, lines, y_label=label))
    title = "The mean cosine and the norm difference over training"
    notes = (measured.AVERAGED, measured.note(runs, datasets, scale))
    return [Figure("figure4", title, tuple(panels), EXPLANATION, notes)]


def mean_cosine(record: Record, since: Measured) -> float:
    """Return the mean of cos(h_i, h) over domains and rounds."""
    return mean(chain.from_iterable(since.cosine))


def mean_distance(record: Record, since: Measured) -> float:
    """Return the mean of ‖θ_i − θ⁺‖² over domains and rounds."""
    return mean(chain.from_iterable(since.difference))
