"""POGM's radius κ around ERM's trajectory, by validation on the training domains.

This is how the default of κ and its search range are chosen: by the accuracy on the held-back part of the training
domains, which does not look at the test domain. The accuracy on the held-out domain is beside it. All rows see the same
data, first weights and minibatches; κ = 0 is ERM.
"""

from collections.abc import Sequence

from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm import POGM
from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments import paired
from pogm.experiments.base import Exhibit, Scale

KAPPAS = (0.0, 0.05, 0.1, 0.2, 0.5, 0.8)
ROWS: dict[str, Algorithm] = {f"κ = {kappa:g}": POGM(kappa=kappa) for kappa in KAPPAS}


def plan(scale: Scale) -> list[Trial]:
    """Every value with the same seeds."""
    return [trial for _, trial in paired.planned(scale, ROWS)]


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Differences to κ = 0: of the validation accuracy, and of the accuracy on the held-out domain."""
    found = paired.labelled(runs, scale, ROWS)
    validated = paired.differences(
        found, "κ = 0", value=lambda choice: choice.validation, what="Validation accuracy on the training domains"
    )
    return [validated, paired.differences(found, "κ = 0")]
