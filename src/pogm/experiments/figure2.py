"""Figure 2: agreement of a step with each of two domains, for ERM and Fish."""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments import measured, pairs
from pogm.experiments.base import Exhibit, Plan, Scale

PRINTED = ("ColoredMNIST", "PACS")  # datasets of the figure in the paper
METHODS = ("ERM", "Fish")


def plan(scale: Scale) -> Plan:
    """Return the runs of all methods, because the figure lists their numbers."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return the cosines of pairs of domains, and the numbers of all methods."""
    title = "Agreement of a step with each of two domains: ERM and Fish"
    return [pairs.figure("figure2", title, METHODS, scale.printed(PRINTED), runs, scale)]
