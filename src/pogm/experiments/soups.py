"""Weight soups and ensembles of ERM, paired with single runs.

The runs of a group, for one held-out domain and seed, have the same data, splits, first weights and hyperparameters,
and different minibatches. The first run of a group is that of all paired comparisons. The experiment trains the runs;
`pogm soup RUNS` and `pogm ensemble RUNS` combine them, where RUNS is the folder of the runs, and the same experiment
again shows all rows. A group trains as many runs as its soup has, so the fair comparison is with the best of them by
training-domain validation.
"""

from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.accuracy_tables import averages_table
from pogm.benchmark.results.combined import COMBINATION
from pogm.benchmark.results.paired import UNIT, differences
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.table import Column, Estimate, Table
from pogm.benchmark.results.table import Row as TableRow
from pogm.experiments import evidence, paired
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.results import gain_column

COMBINES = True
MEMBERS = 3  # runs of a group
ROWS = (ERM, Row("ERM", ("SMA",)))


def plan(scale: Scale) -> Plan:
    """Return the runs of all groups by row. Rows differ only in the average of the weights, so they train together."""
    more = {"seeds": evidence.SEEDS[scale.name]} if scale.name in evidence.SEEDS else {}
    first = paired.plan_rows(scale, ROWS, **more)
    return {
        row: [member for trial in trials for member in trial.soup_members(MEMBERS)] for row, trials in first.items()
    }


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Table]:
    """Return a table for each dataset."""
    datasets = dict.fromkeys(run.dataset for run in runs)
    return [soup_table([run for run in runs if run.dataset == dataset]) for dataset in datasets]


def soup_table(runs: Sequence[Run]) -> Table:
    """Return accuracies and differences to ERM of single runs, of the best runs of all groups, and of combinations.

    Args:
        runs: Runs of all groups, and the combinations of them.
    """
    compared: list[Run] = []
    trained: dict[str, int] = {}  # number of runs, by label
    for row in ROWS:
        members = [run for run in runs if run.label == row.name]
        compared += [run for run in members if run.hparams_seed == 0]
        best = f"{row.name}, best of {MEMBERS}"
        compared += [replace(run, label=best) for run in members]
        combined = [run for run in runs if run.members and run.label.startswith(f"{row.name}, ")]
        compared += combined
        trained |= {row.name: 1, best: MEMBERS} | {run.label: run.trial[COMBINATION]["considered"] for run in combined}
    gains = {row.key: row.estimates[0] for row in differences(compared, ERM.name).rows} | {ERM.name: Estimate()}
    table = averages_table(compared, TRAINING_DOMAIN)
    return Table(
        title=f"{runs[0].dataset}: soups and ensembles",
        columns=(
            Column("trained", "trained runs", kind="number"),
            Column("accuracy", "training-domain validation", unit="%", csv_prefix="accuracy_"),
            gain_column("difference", "difference to ERM", csv_prefix="difference_"),
            Column("n", kind="number"),
        ),
        rows=tuple(
            TableRow((trained[row.key], row.estimates[0], gains[row.key], row.estimates[0].n), row.key)
            for row in table.rows
        ),
        selection=TRAINING_DOMAIN,
        footnotes=(UNIT, *table.footnotes),
        row_key="algorithm",
    )
