"""Tables in which every row is compared with ERM and with a control of its own, paired by held-out domain and seed."""

from collections.abc import Mapping, Sequence

from pogm.benchmark.results.accuracy_tables import CSV_KEYS, averages_table, labels_of
from pogm.benchmark.results.paired import UNIT, paired_difference
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Column, Estimate, Row, Table
from pogm.experiments.base import ERM
from pogm.experiments.results import gain_column

Controls = Mapping[str, str]  # control of a row, both by name


def control_differences(
    runs: Sequence[Run], dataset: str, selection: Selection, controls: Controls
) -> dict[str, tuple[Estimate, Estimate]]:
    """Return the differences of every row to ERM and to its control on one dataset; empty ones if there is nothing."""
    chosen = {(c.dataset, c.label, c.domain, c.trial_seed): c.accuracy for c in selection(runs)}

    def gain(label: str, baseline: str | None) -> Estimate:
        known = baseline is not None and label != baseline
        return paired_difference(chosen, [dataset], label, str(baseline)) if known else Estimate()

    return {label: (gain(label, ERM.name), gain(label, controls.get(label))) for label in labels_of(runs)}


def gains_table(runs: Sequence[Run], selection: Selection, controls: Controls, title: str, control: str) -> Table:
    """Return the paired differences of every row to ERM and to its control, for every dataset.

    Args:
        runs: Runs, labelled by their rows.
        selection: How the step of a run is chosen.
        controls: Control of every row that has one.
        title: Title of the table.
        control: What a control is, for the headings.
    """
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    by_dataset = [control_differences(runs, dataset, selection, controls) for dataset in datasets]
    rows = [Row(tuple(cell for found in by_dataset for cell in found[label]), label) for label in labels_of(runs)]
    columns = [
        gain_column(f"{dataset}, to {name}", ids={"dataset": dataset, "domain": f"difference to {name}"})
        for dataset in datasets
        for name in (ERM.name, control)
    ]
    return Table(
        title=title,
        columns=tuple(columns),
        rows=tuple(rows),
        selection=selection,
        footnotes=(UNIT,),
        row_key="algorithm",
        csv_keys=CSV_KEYS,
    )


def control_table(runs: Sequence[Run], controls: Controls, title: str, control: str) -> Table:
    """Return the accuracies of every row on one dataset, and its differences to ERM and to its control.

    Args:
        runs: Runs on one dataset.
        controls: Control of every row that has one.
        title: Title of the table, after the dataset.
        control: What a control is, for the headings: "difference to ...".
    """
    (dataset,) = {run.dataset for run in runs}
    columns: list[Column] = []
    cells: dict[str, list[Estimate]] = {label: [] for label in labels_of(runs)}
    for key, heading, selection in (
        ("accuracy", "training-domain validation", TRAINING_DOMAIN),
        ("last", "last step", TEST_DOMAIN),
    ):
        gain_columns = (gain_column(f"{key}_{name}", f"difference to {name}") for name in (ERM.name, control))
        columns += [Column(key, heading, unit="%"), *gain_columns]
        found = control_differences(runs, dataset, selection, controls)
        for row in averages_table(runs, selection).rows:
            cells[row.key] += [row.estimates[0], *found[row.key]]
    return Table(
        title=f"{dataset}: {title}",
        columns=(*columns, Column("n", kind="number")),
        rows=tuple(Row((*found, found[0].n), label) for label, found in cells.items()),
        row_key="algorithm",
    )
