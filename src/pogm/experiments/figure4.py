"""Figure 4: the mean cosine and the norm difference over training.

A table for each dataset has the means over all rounds: of the cosine, of the lowest cosine with a domain, of the
difference of the cosines of two domains, and of the distance; and the accuracy on the held-out domain.
"""

import math
from collections.abc import Sequence
from itertools import chain

from pogm.benchmark.results.measurements import Measured, gaps, mean
from pogm.benchmark.results.record_file import Record, accuracy
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Column, Row, Table, estimate
from pogm.experiments import measured
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.report.figure import Figure, Panel

PRINTED = ("VLCS", "PACS")  # datasets of the figure in the paper
COLUMNS = (  # of the table: key, title, unit, digits, and digits of the standard error
    ("cosine", "mean cosine", "", ".3f", ".3f"),
    ("lowest", "lowest cosine", "", ".3f", ".3f"),
    ("gap", "gap", "", ".3f", ".3f"),
    ("distance", "‖θᵢ − θ⁺‖²", "", ".2g", ".1g"),
    ("accuracy", "test accuracy", "%", ".1f", ".1f"),
)
EXPLANATION = (
    "Left of each pair: the cosine of a step h and the step hᵢ of each training domain alone, cos(hᵢ, h), averaged "
    "over domains; higher is more similar. Right: the squared distance of the copy of the model of each domain to "
    "the shared model, ‖θᵢ − θ⁺‖², averaged over domains; lower is closer. The distance also depends on the length "
    "of a step: a method whose steps are longer or shorter than those of a domain has a larger distance."
)


def plan(scale: Scale) -> Plan:
    """Return the runs that Figures 2 to 5 share."""
    return measured.trials(scale, PRINTED)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return a figure with two panels for each dataset, and tables of the means over all rounds."""
    panels, datasets = [], scale.printed(PRINTED)
    for dataset in datasets:
        for value, label in ((mean_cosine, "cos(hᵢ, h)"), (mean_distance, "‖θᵢ − θ⁺‖²")):
            if lines := measured.curves(runs, dataset, value):
                panels.append(Panel(dataset, lines, y_label=label))
    title = "The mean cosine and the norm difference over training"
    notes = (measured.AVERAGED, measured.note(runs, datasets, scale))
    tables = (agreement_table(runs, dataset) for dataset in datasets)
    return [Figure("figure4", title, tuple(panels), EXPLANATION, notes), *(table for table in tables if table.rows)]


def agreement_table(runs: Sequence[Run], dataset: str) -> Table:
    """Return the agreement of the steps of every method with the training domains, as means over all rounds."""
    rows = []
    for method in measured.COMPARED:
        found = measured.finished_runs(runs, dataset, method)
        values = (
            [mean(chain.from_iterable(one.cosine)) for _, one in found],
            [mean(map(_lowest, one.cosine)) for _, one in found],
            [mean(gaps(one).values()) for _, one in found],
            [mean(chain.from_iterable(one.difference)) for _, one in found],
            [100 * accuracy(run.records[-1], "in", measured.HELD_OUT) for run, _ in found],
        )
        if found:
            rows.append(Row(tuple(map(estimate, values)), method))
    return Table(
        title=f"{dataset}: agreement of a step with the training domains",
        columns=tuple(
            Column(
                key, title, unit=unit, digits=digits, error_digits=error_digits, ids={"dataset": dataset, "value": key}
            )
            for key, title, unit, digits, error_digits in COLUMNS
        ),
        rows=tuple(rows),
        footnotes=(
            "Means over all rounds, then mean ± standard error over trials. The lowest cosine is that with the "
            "domain that agrees least in the round; the gap is the mean of |cos(hᵢ, h) − cos(hⱼ, h)| over pairs of "
            "domains. The accuracy is that on the held-out domain after the last step.",
        ),
        row_key="algorithm",
        csv_keys=("dataset", "algorithm", "value"),
    )


def mean_cosine(record: Record, since: Measured) -> float:
    """Return the mean of cos(h_i, h) over domains and rounds."""
    return mean(chain.from_iterable(since.cosine))


def mean_distance(record: Record, since: Measured) -> float:
    """Return the mean of ‖θ_i − θ⁺‖² over domains and rounds."""
    return mean(chain.from_iterable(since.difference))


def _lowest(cosines: Sequence[float]) -> float:
    """Return the lowest cosine of a round; NaN if one is undefined."""
    return math.nan if any(map(math.isnan, cosines)) else min(cosines)
