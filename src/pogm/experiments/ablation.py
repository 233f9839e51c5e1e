"""The search that Tables 3 to 5 share. Each table splits it by the values of one hyperparameter.

The paper's tables were made with the authors' code, so OfficialPOGM is searched as well as POGM, which has other
ranges. The other hyperparameters keep the values that were drawn. Selection is among the runs with the same value, as
in the authors' scripts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.published import Source, find_publication
from pogm.benchmark.results.records import Run
from pogm.experiments.base import Exhibit, Plan, Row, Scale
from pogm.experiments.results import averages, compare_by_label, details
from pogm.experiments.trials import plan_search

ROWS = (Row("OfficialPOGM"), Row("POGM"))


def search(scale: Scale) -> Plan:
    """Plan the trials, which are the same for all three tables."""
    return {row: plan_search(scale, row, configurations=scale.ablation) for row in ROWS}


def split(runs: Sequence[Run], setting: str, symbol: str | None = None) -> list[Run]:
    """Label runs by the value of a hyperparameter, and sort them by that value.

    A label is "α = 0.5", for example. With several algorithms it is "POGM, α = 0.5", and without a symbol it is
    "POGM, meta_lr = 0.5".
    """
    several = len({run.label for run in runs}) > 1
    order = list(dict.fromkeys(run.label for run in runs))
    ordered = sorted(runs, key=lambda run: (order.index(run.label), _value(run, setting)))
    return [
        replace(
            run,
            label=(f"{run.label}, " if several or symbol is None else "")
            + f"{symbol or setting} = {_value(run, setting):g}",
        )
        for run in ordered
    ]


def ablation_tables(
    runs: Sequence[Run], setting: str, symbol: str, *notes: str, paper: Source | None = None
) -> list[Exhibit]:
    """Return averages under both selections, comparisons with the paper and the authors' log, and every domain.

    Args:
        runs: Runs of the search.
        setting: Hyperparameter; the runs are split by its values.
        symbol: Symbol of the hyperparameter, for the labels of the rows.
        notes: Further footnotes.
        paper: Results of the paper; default: `find_publication("paper")`.
    """
    rows, named = split(runs, setting, symbol), split(runs, setting)
    footnotes = [*notes, _counts_note(rows)]
    comparisons = [
        *compare_by_label(named, paper or find_publication("paper")),
        *compare_by_label(named, find_publication("official-log")),
    ]
    return [*averages(rows, notes=footnotes), *comparisons, *details(rows)]


def _counts_note(rows: Sequence[Run]) -> str:
    """Say how many configurations have each value."""
    found = {(run.label, run.hparams_seed, run.trial_seed) for run in rows}
    counts = Counter(label for label, _, _ in sorted(found))
    trials = len({trial for _, _, trial in found})
    drawn = ", ".join(f"{counts[label]} with {label}" for label in dict.fromkeys(run.label for run in rows))
    return f"Of {len(found)} configurations in {trials} trial{'s' * (trials > 1)}: {drawn}."


def _value(run: Run, setting: str) -> float:
    return float(run.trial["algorithm"][setting])
