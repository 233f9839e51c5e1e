"""What POGM's inner optimizer costs and what its matching gains, on RotatedDigits.

The rows with κ = 0 do not match at all: they average what the domains' copies learned. Every method sees the same data
and minibatches.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.pogm import POGM
from pogm.benchmark.records import Run
from pogm.benchmark.selection import TEST_DOMAIN, Selection
from pogm.benchmark.tables import Cell, Table, dataset_table
from pogm.benchmark.trial import Trial
from pogm.datasets.base import Training
from pogm.datasets.rotated_digits import RotatedDigits
from pogm.experiments.base import Exhibit, Scale, default_trial
from pogm.experiments.results import failures

DATASET = RotatedDigits.__name__
HELD_OUT = (0, 2, 5)  # the angles 0, 30 and 75
STEPS = 301
TRIALS = 3
METHODS: dict[str, tuple[Algorithm, float]] = {
    "ERM, Adam, lr 0.005": (ERM(), 5e-3),
    "POGM, Adam, lr 0.005, α = 0.5, κ = 0": (POGM(kappa=0.0), 5e-3),
    "POGM, Adam, lr 0.005, α = 0.5, κ = 0.5": (POGM(kappa=0.5), 5e-3),
    "POGM, SGD, lr 0.3, α = 1, κ = 0": (POGM(kappa=0.0, meta_lr=1.0, inner_optimizer="sgd"), 0.3),
    "POGM, SGD, lr 0.3, α = 1, κ = 0.5": (POGM(kappa=0.5, meta_lr=1.0, inner_optimizer="sgd"), 0.3),
}
LAST_STEP = Selection(
    "last-step",
    "No selection",
    f"Accuracy on the held-out domain after the last of {STEPS} minibatches; there is one configuration, so nothing is "
    "chosen.",
    TEST_DOMAIN.score,  # which chooses among configurations alone
)


def plan(scale: Scale) -> list[Trial]:
    """Three angles held out, at the scale that has this dataset."""
    return [trial for _, trial in _planned(scale)]


def _planned(scale: Scale) -> list[tuple[str, Trial]]:
    if DATASET not in scale.datasets:
        return []
    longer = replace(scale, steps=STEPS, evaluate_every=STEPS - 1)
    return [
        (row, default_trial(longer, DATASET, algorithm, held_out, trial_seed, training=_training(lr)))
        for row, (algorithm, lr) in METHODS.items()
        for held_out in HELD_OUT
        for trial_seed in range(TRIALS)
    ]


def _training(lr: float) -> Training:
    return replace(RotatedDigits.training, lr=lr)  # with its own network


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Rows against the angles that were held out."""
    rows = {trial.id: row for row, trial in _planned(scale)}
    labelled = [replace(run, label=rows[run.id]) for run in runs]
    return [_table(labelled)] if runs else []


def _table(runs: Sequence[Run]) -> Table:
    whole = dataset_table(runs, DATASET, LAST_STEP)
    cells = [[row[place] for place in HELD_OUT] for row in whole.cells]
    return replace(
        whole,
        columns=(*(whole.columns[place] for place in HELD_OUT), whole.columns[-1]),
        keys=(*(whole.keys[place] for place in HELD_OUT), whole.keys[-1]),
        cells=tuple((*row, _mean(row)) for row in cells),
        footnotes=(*whole.footnotes, *failures(runs)),
    )


def _mean(row: Sequence[Cell]) -> Cell:
    means = [cell.mean for cell in row if cell.mean is not None]
    return Cell(fmean(means), n=min(cell.n for cell in row)) if len(means) == len(row) else Cell()
