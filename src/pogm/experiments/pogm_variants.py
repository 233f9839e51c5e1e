"""Variants of POGM against ERM and against themselves without matching (κ = 0), paired.

A variant succeeds on a dataset if its gains over ERM and over its control with κ = 0 are more than two standard errors
(training-domain validation, at least ten seeds). It succeeds if it does so on three datasets. A variant without success
on the first three is not run on further ones. POGM with the ERM centre and κ = 0 is ERM, so it is also the control of
the variants whose centre is ERM's trajectory. Two rows have no matching: ERM with the step length of Fish, and Fish
with that of ERM. All rows have the same data, first weights and minibatches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Column, Estimate, Table
from pogm.benchmark.results.table import Row as TableRow
from pogm.experiments import paired
from pogm.experiments.base import ERM, Exhibit, Plan, Row, Scale
from pogm.experiments.centre import ERM_CENTRE, ERM_CENTRE_KAPPA_0
from pogm.experiments.controls import control_differences, control_table, gains_table
from pogm.experiments.results import BOTH, NOTHING, averages, details

BY_ROW = True
METHODS = "pogm.experiments.variant_methods"
SEEDS = 10  # least number for a success
ERRORS = 2  # standard errors of a gain that counts
DATASETS = 3  # least number of datasets for a success
FIRST_DATASETS = frozenset({"HeartDisease", "SpokenDigits", "AmazonReviews"})  # without success there: not run further
CONTROL = "κ = 0"


def _variant(kind: str, name: str, kappa: str | None = None, *settings: str) -> Row:
    fixed, label = ((f"kappa={kappa}", *settings), f"{name}, κ = {kappa}") if kappa else (settings, name)
    return Row(f"{METHODS}:{kind}", settings=fixed, name=label)


def _pair(kind: str, name: str, *settings: str) -> tuple[Row, Row]:
    """Return the row of a variant and its control."""
    return _variant(kind, name, "0.5", *settings), _variant(kind, name, "0", *settings)


SHARED, SHARED_0 = _pair("SharedMomentPOGM", "Shared second moment, mean centre", "centre=mean")
SHARED_5, SHARED_5_0 = _pair(
    "SharedMomentPOGM", "Shared second moment, mean centre, E = 5", "centre=mean", "inner_steps=5"
)
SHARED_ERM = _variant("SharedMomentPOGM", "Shared second moment, ERM centre", "0.5")
NESTEROV, NESTEROV_0 = _pair("NesterovPOGM", "Outer Nesterov momentum")
ADAM, ADAM_0 = _pair("OuterAdamPOGM", "Outer Adam")
CROSS = _variant("CrossBatchPOGM", "Cross-batch Gramian, E = 4", "0.5")
ROUND_4 = Row("POGM", settings=("kappa=0.5", "inner_steps=4"), name="POGM, ERM centre, E = 4, κ = 0.5")
CONFLICT = _variant("ConflictPOGM", "κ only in early conflicts", "0.5")
FISH, FISH_0 = _pair("FishCentrePOGM", "Fish centre")
ERM_LONGER = _variant("MatchedLength", "ERM, step length of Fish", None, "along=erm")
FISH_SHORTER = _variant("MatchedLength", "Fish, step length of ERM", None, "along=walk")
ROWS = (
    ERM,
    *map(Row, ("Fish", "Reptile", "POGM")),
    ERM_CENTRE_KAPPA_0,
    ERM_CENTRE,
    FISH_0,
    FISH,
    ERM_LONGER,
    FISH_SHORTER,
    SHARED_0,
    SHARED,
    SHARED_5_0,
    SHARED_5,
    SHARED_ERM,
    NESTEROV_0,
    NESTEROV,
    ADAM_0,
    ADAM,
    CROSS,
    ROUND_4,
    CONFLICT,
)
CONTROLS: Mapping[str, str] = {  # control of a row with matching
    "POGM": ERM_CENTRE_KAPPA_0.name,
    **{row.name: ERM_CENTRE_KAPPA_0.name for row in (ERM_CENTRE, SHARED_ERM, CROSS, ROUND_4, CONFLICT)},
    **{
        row.name: control.name
        for row, control in (
            (FISH, FISH_0),
            (SHARED, SHARED_0),
            (SHARED_5, SHARED_5_0),
            (NESTEROV, NESTEROV_0),
            (ADAM, ADAM_0),
        )
    },
}
VARIANTS = tuple(row.name for row in ROWS if row.name in CONTROLS and row.algorithm != "POGM")


def plan(scale: Scale) -> Plan:
    """Return the trials of every row, with the same seeds. On MNIST they are evaluated as those of the evidence."""
    more = {"evaluate_every": 100} if scale.name == "mnist" else {}
    return paired.plan_rows(scale, ROWS, seeds=SEEDS, **more)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return the gains over ERM and over the controls, accuracies, and the results of every domain."""
    if not runs:
        return []
    return [*(gains(runs, selection) for selection in reversed(BOTH)), *averages(runs), *details(runs)]


def gains(runs: Sequence[Run], selection: Selection = TRAINING_DOMAIN) -> Table:
    """Return the paired differences of every row to ERM and to its control, for every dataset, and who succeeds."""
    title = "Variants of POGM: difference to ERM and to the control with κ = 0, paired"
    table = gains_table(runs, selection, CONTROLS, title, CONTROL)
    notes = (summary(table.rows),) if selection is TRAINING_DOMAIN else ()
    return replace(table, footnotes=(*table.footnotes, *notes))


def variant_table(runs: Sequence[Run]) -> Table:
    """Return the accuracies of every row on one dataset, and its differences to ERM and to its control."""
    return control_table(runs, CONTROLS, "variants of POGM", CONTROL)


def success_table(by_dataset: Mapping[str, Sequence[Run]]) -> Table:
    """Return on which datasets each variant succeeds.

    Args:
        by_dataset: Runs of the complete rows of every dataset; none if it was not run.
    """
    rows = []
    for label, wins in _successes(by_dataset).items():
        verdicts = (NOTHING if name not in wins else "yes" if wins[name] else "no" for name in by_dataset)
        rows.append(TableRow((*verdicts, f"{sum(wins.values())} of {len(wins)}"), label))
    names = (*by_dataset, "datasets with success")
    return Table(
        title="Variants of POGM: datasets with success",
        columns=tuple(Column(name, kind="text") for name in names),
        rows=tuple(rows),
        row_key="algorithm",
    )


def decided_rows(by_dataset: Mapping[str, Sequence[Run]]) -> frozenset[str]:
    """Return the rows that are not run on further datasets.

    These are variants that can no longer succeed, or that have no success on `FIRST_DATASETS`, and then all rows but
    ERM, the other variants, and their controls.

    Args:
        by_dataset: Runs of the complete rows of every dataset of the rule; none if it was not run.
    """
    found = _successes(by_dataset)
    lost = {label: len(wins) - sum(wins.values()) for label, wins in found.items()}
    failed = {
        label
        for label, wins in found.items()
        if lost[label] > len(by_dataset) - DATASETS or (wins.keys() >= FIRST_DATASETS and not any(wins.values()))
    }
    if not failed:
        return frozenset()
    left = set(VARIANTS) - failed
    needed = {ERM.name, *left, *(CONTROLS[label] for label in left)} if left else set()
    return frozenset(row.name for row in ROWS if row.name not in needed)


def _successes(by_dataset: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, bool]]:
    """Return whether each variant succeeds on each dataset that has its runs."""
    found = {
        name: control_differences(runs, name, TRAINING_DOMAIN, CONTROLS) for name, runs in by_dataset.items() if runs
    }
    return {
        label: {name: _wins(cells[label]) > 0 for name, cells in found.items() if label in cells} for label in VARIANTS
    }


def summary(rows: Sequence[TableRow]) -> str:
    """Return a sentence: which variants succeed, by the cells of `gains`."""
    wins = {row.key: _wins(row.estimates) for row in rows if row.key in VARIANTS}
    if not wins:
        return "No variant has a run."
    rule = f"gains over ERM and over the control of more than {ERRORS} standard errors with at least {SEEDS} seeds"
    winners = [name for name, count in wins.items() if count >= DATASETS]
    verdict = f"Success on at least {DATASETS} datasets ({rule}): {', '.join(winners) or 'none'}."
    some = [f"{name} ({count})" for name, count in wins.items() if count]
    return f"{verdict} Datasets with such gains, of {len(rows[0].cells) // 2}: {', '.join(some) or 'none'}."


def _wins(cells: Sequence[Estimate]) -> int:
    """Return the number of datasets on which both differences are gains that count."""
    counts = [
        cell.mean is not None and cell.stderr is not None and cell.n >= SEEDS and cell.mean > ERRORS * cell.stderr
        for cell in cells
    ]
    return sum(over_erm and over_control for over_erm, over_control in zip(counts[::2], counts[1::2], strict=True))
