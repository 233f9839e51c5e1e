"""POGM by κ, α and E, and combined with modifiers: one change at a time, paired.

Tables 3 to 5 of the paper split a random search by the values of one hyperparameter, so their rows also differ in the
other hyperparameters. Here a row changes one value of POGM, or of the authors' version, and keeps all other defaults. A
row is compared with ERM and with its reference: the method with its defaults or, for POGM with a modifier, ERM with the
same modifier. All rows have the same data, first weights and number of minibatches.
"""

from collections.abc import Sequence

from pogm.algorithms import algorithm_class
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Table
from pogm.core.hyperparameters import fields
from pogm.data.datasets import dataset_class
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.experiments import evidence, paired
from pogm.experiments.base import ERM, Exhibit, Plan, Row, Scale
from pogm.experiments.controls import control_table, gains_table
from pogm.experiments.results import BOTH, averages, details

BY_ROW = True
METHODS = ("POGM", "OfficialPOGM")
SYMBOLS = {"kappa": "κ", "meta_lr": "α", "inner_steps": "E"}
MORE = {("POGM", "kappa"): (0.0,)}  # values besides those of the search space: without matching, POGM is ERM
MODIFIERS = ("Mixup", "SWAD", "SMA", "Augment", "CIRL")  # those of Table 2, and the average of all weights
REFERENCE = "the reference"
TITLE = "POGM with one change at a time: difference to ERM and to the reference, paired"


def _changed(method: str) -> list[Row]:
    """Return a row for every value in the search spaces of κ, α and E that is not the default."""
    by_name = {field.name: field for field in fields(algorithm_class(method))}
    changes = [
        (name, value)
        for name in SYMBOLS
        for value in (*MORE.get((method, name), ()), *by_name[name].metadata["space"].values)
        if value != by_name[name].default
    ]
    return [
        Row(method, settings=(f"{name}={value:g}",), name=f"{method}, {SYMBOLS[name]} = {value:g}")
        for name, value in changes
    ]


CHANGED = {Row(method): _changed(method) for method in METHODS}  # rows with one change, by the row with the defaults
COMBINED = {Row("ERM", (name,)): Row("POGM", (name,)) for name in MODIFIERS}  # POGM with a modifier, by its reference
REFERENCES = {
    **{row.name: default.name for default, found in CHANGED.items() for row in found},
    **{row.name: reference.name for reference, row in COMBINED.items()},
}


def rows(scale: Scale) -> list[Row]:
    """Return the rows for the datasets of a scale. Data that are not images have no modifiers for images."""
    is_array = any(issubclass(dataset_class(name), ArrayDataset) for name in scale.datasets)
    refused = evidence.FOR_IMAGES if is_array else ()
    pairs = [pair for pair in COMBINED.items() if not set(refused).intersection(pair[0].modifiers)]
    changed = (row for default, found in CHANGED.items() for row in (default, *found))
    return [ERM, *changed, *(row for pair in pairs for row in pair)]


def plan(scale: Scale) -> Plan:
    """Return the trials of every row, with the seeds and evaluations of the evidence."""
    more = {"seeds": evidence.SEEDS[scale.name]} if scale.name in evidence.SEEDS else {}
    more |= {"evaluate_every": 100} if scale.name == "mnist" else {}
    return paired.plan_rows(scale, rows(scale), **more)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return the differences of every row to ERM and to its reference, accuracies, and the results of every domain."""
    gains = [gains_table(runs, selection, REFERENCES, TITLE, REFERENCE) for selection in reversed(BOTH) if runs]
    return [*gains, *averages(runs), *details(runs)]


def ablation_table(runs: Sequence[Run]) -> Table:
    """Return the table of one dataset."""
    return control_table(runs, REFERENCES, "POGM with one change at a time", REFERENCE)
