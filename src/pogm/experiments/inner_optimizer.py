"""POGM by its centre and its inner optimizer, on RotatedDigits.

The rows with κ = 0 do no matching: they follow the centre, which is the step of ERM (ERM centre) or the mean of the
steps of the domains' copies (mean centre). All rows have the same data and minibatches.
"""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.accuracy_tables import average, dataset_table
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, Selection
from pogm.benchmark.results.table import Table
from pogm.data.datasets.rotated_digits import RotatedDigits
from pogm.experiments.base import Exhibit, Plan, Row, Scale
from pogm.experiments.results import failures
from pogm.experiments.trials import default_trial

DATASET = RotatedDigits.__name__
HELD_OUT = (0, 2, 5)  # the angles 0, 30 and 75
STEPS = 301
ADAM = ("lr=0.005",)
SGD = ("lr=0.3", "inner_optimizer=sgd", "meta_lr=1", "centre=mean")
MEAN = (*ADAM, "meta_lr=0.5", "centre=mean")
ERM_CENTRE = (*ADAM, "meta_lr=1", "centre=erm")
ROWS = (
    Row("ERM", settings=ADAM, name="ERM, Adam, lr 0.005"),
    Row("POGM", settings=(*ERM_CENTRE, "kappa=0"), name="POGM, ERM centre, Adam, lr 0.005, α = 1, κ = 0"),
    Row("POGM", settings=(*ERM_CENTRE, "kappa=0.5"), name="POGM, ERM centre, Adam, lr 0.005, α = 1, κ = 0.5"),
    Row("POGM", settings=(*MEAN, "kappa=0"), name="POGM, mean centre, Adam, lr 0.005, α = 0.5, κ = 0"),
    Row("POGM", settings=(*MEAN, "kappa=0.5"), name="POGM, mean centre, Adam, lr 0.005, α = 0.5, κ = 0.5"),
    Row("POGM", settings=(*SGD, "kappa=0"), name="POGM, mean centre, SGD, lr 0.3, α = 1, κ = 0"),
    Row("POGM", settings=(*SGD, "kappa=0.5"), name="POGM, mean centre, SGD, lr 0.3, α = 1, κ = 0.5"),
)
LAST_STEP = Selection(
    "last-step",
    "No selection",
    f"Accuracy on the held-out domain after the last minibatch ({STEPS} minibatches, unless --steps is given); there "
    "is one configuration, so nothing is selected.",
    TEST_DOMAIN.score,  # it only chooses among configurations, and there is one
)


def plan(scale: Scale) -> Plan:
    """Return trials with three angles held out, if the scale has this dataset."""
    if DATASET not in scale.datasets:
        return {}
    steps = scale.steps if scale.steps is not None and scale.was_given("--steps") else STEPS
    longer = replace(
        scale,
        network=scale.network if scale.was_given("--network") else None,  # None: the network of the dataset
        steps=steps,
        evaluate_every=scale.evaluate_every if scale.was_given("--evaluate-every") else max(1, steps - 1),
    )
    return {
        row: [
            default_trial(longer, DATASET, row, held_out, seed) for held_out in HELD_OUT for seed in range(scale.seeds)
        ]
        for row in ROWS
        if scale.selects(row)
    }


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return a table of rows against the held-out angles."""
    return [_table(runs)] if runs else []


def _table(runs: Sequence[Run]) -> Table:
    """Return the table of the dataset with only the columns of the held-out angles and their mean."""
    full = dataset_table(runs, DATASET, LAST_STEP)
    rows = []
    for row in full.rows:
        cells = [row.estimates[i] for i in HELD_OUT]
        rows.append(replace(row, cells=(*cells, average(cells))))
    return replace(
        full,
        columns=(*(full.columns[i] for i in HELD_OUT), full.columns[-1]),
        rows=tuple(rows),
        footnotes=(*full.footnotes, *failures(runs)),
    )
