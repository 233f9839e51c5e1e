"""POGM's radius κ around ERM's trajectory, by validation on the training domains.

The default of κ and its search range are chosen by this experiment: by the accuracy on the validation part of the
training domains, which does not use the test domain. The accuracy on the held-out domain is shown beside it. All rows
have the same data, first weights and minibatches; κ = 0 is ERM.
"""

from collections.abc import Sequence

from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import Run
from pogm.experiments import paired
from pogm.experiments.base import Exhibit, Plan, Row, Scale

KAPPAS = (0.0, 0.05, 0.1, 0.2, 0.5, 0.8)
ROWS = tuple(Row("POGM", settings=(f"kappa={kappa:g}",), name=f"κ = {kappa:g}") for kappa in KAPPAS)


def plan(scale: Scale) -> Plan:
    """Return the trials of every value, with the same seeds."""
    return paired.plan_rows(scale, ROWS)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return differences to κ = 0: of the validation accuracy, and of the accuracy on the held-out domain."""
    if not runs:
        return []
    validated = differences(
        runs,
        ROWS[0].name,
        value=lambda choice: choice.validation,
        what="Validation accuracy on the training domains",
        key="difference of validation accuracy",
    )
    return [validated, differences(runs, ROWS[0].name)]
