"""The searches that Tables 3 to 5 are made of, each by splitting them at the values of one hyperparameter.

The paper's tables are of the authors' code, so OfficialPOGM is searched beside POGM, whose ranges differ.

The other hyperparameters stay as they were drawn, and selection is among the runs with a value, as in the authors'
scripts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.results.published import Source, published
from pogm.benchmark.results.records import Run
from pogm.experiments.base import Exhibit, Plan, Row, Scale, searched
from pogm.experiments.results import averages, beside, details

ROWS = (Row("OfficialPOGM"), Row("POGM"))


def search(scale: Scale) -> Plan:
    """The same trials for all three tables."""
    return {row: searched(scale, row, configurations=scale.ablation) for row in ROWS}


def split(runs: Sequence[Run], setting: str, symbol: str | None = None) -> list[Run]:
    """The runs, relabelled by the value each has, the smallest value first.

    A label is such as "α = 0.5"; without a symbol, or where there are several algorithms, "POGM, meta_lr = 0.5".
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


def ablated(runs: Sequence[Run], setting: str, symbol: str, *notes: str, paper: Source | None = None) -> list[Exhibit]:
    """Averages under both selections, the same in the paper and in the authors' log, and every domain.

    Args:
        runs: Runs of the search.
        setting: The hyperparameter by whose values the runs are split.
        symbol: Its symbol, for the rows.
        notes: Notes beneath the tables.
        paper: The paper's results, if other than `published("paper")`.
    """
    rows, named = split(runs, setting, symbol), split(runs, setting)
    said = [*notes, _drawn(rows)]
    beside_others = [*beside(named, paper or published("paper")), *beside(named, published("official-log"))]
    return [*averages(rows, notes=said), *beside_others, *details(rows)]


def _drawn(rows: Sequence[Run]) -> str:
    """How many configurations had which value."""
    found = {(run.label, run.hparams_seed, run.trial_seed) for run in rows}
    counts = Counter(label for label, _, _ in sorted(found))
    trials = len({trial for _, _, trial in found})
    drawn = ", ".join(f"{counts[label]} with {label}" for label in dict.fromkeys(run.label for run in rows))
    return f"Of {len(found)} configurations in {trials} trial{'s' * (trials > 1)}: {drawn}."


def _value(run: Run, setting: str) -> float:
    return float(run.trial["algorithm"][setting])
