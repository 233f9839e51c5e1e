"""Comparisons that are paired by held-out domain and seed: every method sees the same data, weights and minibatches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Choice, Selection
from pogm.benchmark.results.tables import Cell, Table
from pogm.data.datasets import dataset_class
from pogm.experiments.base import Plan, Row, Scale, default_trial

LENGTHS: dict[str, dict[str, Any]] = {  # by scale; longer runs and more seeds than its tables have
    "embedded": {"steps": 301, "evaluate_every": 30, "network": None, "seeds": 10},
    "mnist": {"steps": 2001, "evaluate_every": 200, "seeds": 3, "precision": "bf16"},
    "pacs": {"steps": 1001, "evaluate_every": 250, "seeds": 3, "large_network": "resnet50_v1", "precision": "bf16"},
}
OPTIONS = {  # of the command line, that choose a field of a scale
    "steps": ("--steps",),
    "evaluate_every": ("--evaluate-every",),
    "seeds": ("--trials",),
    "precision": ("--precision",),
    "network": ("--network",),
    "large_network": ("--network", "--weights"),
}
UNIT = "Percentage points, mean ± standard error over seeds; a seed's value is its mean over the held-out domains."


@dataclass(frozen=True)
class Difference(Cell):
    """A mean difference in percentage points, printed with its sign."""

    def __str__(self) -> str:
        text = super().__str__()
        if self.mean is None or text.startswith("-0.0"):
            return text.replace("-0.0", "+0.0", 1)
        return text if self.mean < 0 else f"+{text}"


def lengthened(scale: Scale) -> Scale:
    """The scale with the steps, seeds and network of a paired comparison, unless the command line chose them."""
    own = LENGTHS.get(scale.name, {})
    left = {name: value for name, value in own.items() if not any(map(scale.was_given, OPTIONS[name]))}
    return replace(scale, **left)


def planned(scale: Scale, rows: Iterable[Row]) -> Plan:
    """Every row on every dataset with every domain held out, with the same seeds."""
    longer = lengthened(scale)
    return {
        row: [
            default_trial(longer, dataset, row, held_out, seed)
            for seed in range(longer.seeds)
            for dataset in longer.datasets
            for held_out in range(len(dataset_class(dataset).domains))
        ]
        for row in rows
        if scale.selects(row)
    }


def differences(
    runs: Sequence[Run],
    baseline: str,
    selection: Selection = TRAINING_DOMAIN,
    value: Callable[[Choice], float | None] = lambda choice: choice.accuracy,
    what: str = "Accuracy on the held-out domain",
) -> Table:
    """Rows against datasets: the mean difference to one row, paired by held-out domain and seed.

    Args:
        runs: Runs, labelled by their rows; those that did not finish are left out, with their pairs.
        baseline: The row to compare with.
        selection: How the step of a run is chosen.
        value: What is compared, as a share: the accuracy on the held-out domain, or the validation accuracy.
        what: What ``value`` is, for the title.
    """
    chosen = {(c.dataset, c.label, c.domain, c.trial_seed): value(c) for c in selection(runs)}
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    rows = list(dict.fromkeys(run.label for run in runs))
    cells = [[_difference(chosen, dataset, row, baseline) for dataset in datasets] for row in rows]
    return Table(
        title=f"{what}: difference to {baseline}, paired",
        selection=selection,
        rows=tuple(rows),
        columns=(*datasets, "mean"),
        keys=(*((dataset, "difference") for dataset in datasets), ("all", "difference")),
        cells=tuple((*row, _mean(row)) for row in cells),
        footnotes=(UNIT,),
    )


def _difference(
    chosen: Mapping[tuple[str, str, int, int], float | None], dataset: str, row: str, baseline: str
) -> Difference:
    by_seed: dict[int, list[float]] = {}
    expected = {domain for name, _, domain, _ in chosen if name == dataset}
    for (name, label, domain, seed), mine in chosen.items():
        theirs = chosen.get((dataset, baseline, domain, seed))
        if name == dataset and label == row and mine is not None and theirs is not None:
            by_seed.setdefault(seed, []).append(100 * (mine - theirs))
    whole = [fmean(values) for values in by_seed.values() if len(values) == len(expected)]
    if not whole:
        return Difference(reason="no complete seed")
    error = stdev(whole) / math.sqrt(len(whole)) if len(whole) > 1 else None
    return Difference(fmean(whole), error, len(whole))


def _mean(row: Sequence[Cell]) -> Difference:
    means = [cell.mean for cell in row if cell.mean is not None]
    return Difference(fmean(means), n=min(cell.n for cell in row)) if len(means) == len(row) else Difference()
