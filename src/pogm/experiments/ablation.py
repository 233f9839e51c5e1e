"""The one search of POGM that Tables 3 to 5 are made of, each by splitting it at the values of one hyperparameter.

The other hyperparameters stay as they were drawn, and selection is among the runs with a value, as in the authors'
scripts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments.base import Exhibit, Scale, searched
from pogm.experiments.results import averages, beside_paper, details


def search(scale: Scale) -> list[Trial]:
    """The same trials for all three tables."""
    return searched(scale, "POGM", configurations=scale.ablation)


def split(runs: Sequence[Run], setting: str, symbol: str | None = None) -> list[Run]:
    """The runs, relabelled by the value each has, the smallest value first."""
    named = symbol or f"POGM, {setting}"
    ordered = sorted(runs, key=lambda run: _value(run, setting))
    return [replace(run, label=f"{named} = {_value(run, setting):g}") for run in ordered]


def ablated(runs: Sequence[Run], setting: str, symbol: str, *notes: str) -> list[Exhibit]:
    """Averages under both selections, what the paper has for the same, and every domain."""
    rows = split(runs, setting, symbol)
    said = [*notes, _drawn(rows)]
    return [*averages(rows, notes=said), *beside_paper(split(runs, setting)), *details(rows)]


def _drawn(rows: Sequence[Run]) -> str:
    """How many configurations had which value."""
    found = {(run.label, run.hparams_seed, run.trial_seed) for run in rows}
    counts = Counter(label for label, _, _ in sorted(found))
    trials = len({trial for _, _, trial in found})
    drawn = ", ".join(f"{counts[label]} with {label}" for label in dict.fromkeys(run.label for run in rows))
    return f"Of {len(found)} configurations in {trials} trial{'s' * (trials > 1)}: {drawn}."


def _value(run: Run, setting: str) -> float:
    return float(run.trial["algorithm"][setting])
