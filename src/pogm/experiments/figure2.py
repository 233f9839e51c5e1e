"""Figure 2: how far a step agrees with each of two domains, ERM and Fish."""

from collections.abc import Sequence

from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments import measured, pairs
from pogm.experiments.base import Exhibit, Scale
from pogm.report.figure import Figure

PRINTED = ("ColoredMNIST", "PACS")  # the paper's
METHODS = ("ERM", "Fish")


def plan(scale: Scale) -> list[Trial]:
    """All methods: their numbers stand beneath."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """The angles of pairs of domains, and the numbers of all methods."""
    datasets = measured.datasets(scale, PRINTED)
    panels = [panel for dataset in datasets for method in METHODS for panel in pairs.panel(runs, dataset, method)]
    title = "How far a step agrees with each of two domains: ERM and Fish"
    notes = (*pairs.notes(runs, datasets), measured.note(runs, datasets, scale))
    return [Figure("figure2", title, tuple(panels), pairs.READING, notes)]
