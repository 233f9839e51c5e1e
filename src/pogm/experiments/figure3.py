"""Figure 3: how far a step agrees with each of two domains, POGM and, not in the paper, POGM without matching."""

from collections.abc import Sequence

from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments import measured, pairs
from pogm.experiments.base import Exhibit, Scale
from pogm.report.figure import Figure

METHODS = ("POGM", "Reptile")
PRINTED = ("ColoredMNIST", "VLCS", "PACS", "OfficeHome")  # the paper's


def plan(scale: Scale) -> list[Trial]:
    """All methods: their numbers stand beneath."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """The angles of pairs of domains, and the numbers of all methods."""
    datasets = measured.datasets(scale, PRINTED)
    panels = [panel for dataset in datasets for method in METHODS for panel in pairs.panel(runs, dataset, method)]
    title = "How far a step agrees with each of two domains: POGM, and without its matching"
    notes = (*pairs.notes(runs, datasets), measured.note(runs, datasets, scale))
    return [Figure("figure3", title, tuple(panels), pairs.READING, notes)]
