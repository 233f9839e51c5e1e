"""Figure 2: how far a step agrees with each of two domains, ERM and Fish."""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments import measured, pairs
from pogm.experiments.base import Exhibit, Plan, Scale

PRINTED = ("ColoredMNIST", "PACS")  # the paper's
METHODS = ("ERM", "Fish")


def plan(scale: Scale) -> Plan:
    """All methods: their numbers stand beneath."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """The angles of pairs of domains, and the numbers of all methods."""
    title = "How far a step agrees with each of two domains: ERM and Fish"
    return [pairs.figure("figure2", title, METHODS, measured.datasets(scale, PRINTED), runs, scale)]
