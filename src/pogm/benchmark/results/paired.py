"""Paired differences: every method sees the same data, initial weights and minibatches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from pogm.benchmark.results.accuracy_tables import CSV_KEYS, average, labels_of
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Choice, Selection
from pogm.benchmark.results.statistics import student_quantile
from pogm.benchmark.results.table import Column, Estimate, Row, Table

UNIT = (
    "Percentage points, mean ± standard error (sample deviation / √n) over seeds; a seed's value is its mean over the "
    "held-out domains."
)
Chosen = Mapping[tuple[str, str, int, int], float | None]  # by dataset, label, held-out domain and seed


def differences(
    runs: Sequence[Run],
    baseline: str,
    selection: Selection = TRAINING_DOMAIN,
    value: Callable[[Choice], float | None] = lambda choice: choice.accuracy,
    what: str = "Accuracy on the held-out domain",
    key: str = "difference",
) -> Table:
    """Return the mean differences to one row, paired by held-out domain and seed: rows against datasets.

    Args:
        runs: Runs, labelled by their rows. A run that did not finish is left out, and so is its pair.
        baseline: The row to compare with.
        selection: How the step of a run is chosen.
        value: The compared number, as a share: the accuracy on the held-out domain, or the validation accuracy.
        what: Name of that number, for the title.
        key: Name of the difference in CSV.
    """
    chosen = {(c.dataset, c.label, c.domain, c.trial_seed): value(c) for c in selection(runs)}
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    rows = []
    for label in labels_of(runs):
        cells = [paired_difference(chosen, [dataset], label, baseline) for dataset in datasets]
        rows.append(Row((*cells, average(cells)), label))
    columns = [_column(dataset, {"dataset": dataset, "domain": key}) for dataset in datasets]
    last = replace(_column("mean", {"dataset": "all", "domain": key}), per_trial=False)
    return Table(
        title=f"{what}: difference to {baseline}, paired",
        columns=(*columns, last),
        rows=tuple(rows),
        selection=selection,
        footnotes=(UNIT,),
        row_key="algorithm",
        csv_keys=CSV_KEYS,
    )


def interval(difference: Estimate, comparisons: int) -> tuple[float, float]:
    """Return the 95 % interval of a mean difference, by Student's t and Bonferroni's correction.

    Args:
        difference: Mean difference and its standard error over n ≥ 2 seeds.
        comparisons: Number of rows that are compared with the same baseline.
    """
    mean, error = _known(difference)
    half = student_quantile(1 - 0.025 / comparisons, difference.n - 1) * error
    return mean - half, mean + half


def detectable(difference: Estimate, comparisons: int) -> float:
    """Return the smallest effect whose corrected interval would exclude 0 with a probability of about 80 %."""
    _, error = _known(difference)
    freedom = difference.n - 1
    return (student_quantile(1 - 0.025 / comparisons, freedom) + student_quantile(0.8, freedom)) * error


def _known(difference: Estimate) -> tuple[float, float]:
    if difference.mean is None or difference.stderr is None:
        raise ValueError(f"Expected a mean over two seeds or more; found {difference}. Run more seeds.")
    return difference.mean, difference.stderr


def _column(title: str, ids: Mapping[str, str]) -> Column:
    return Column(title, unit="percentage points", digits="+.1f", best="highest", per_trial=True, ids=ids)


def paired_difference(chosen: Chosen, datasets: Iterable[str], row: str, baseline: str) -> Estimate:
    """Return the mean difference of two rows in percentage points, over the seeds that are complete on all datasets.

    Args:
        chosen: The compared number by dataset, label, held-out domain and seed, as a share.
        datasets: Datasets to average, with equal weights.
        row: Label of the compared row.
        baseline: Label of the row to compare with.
    """
    by_dataset = [_seed_differences(chosen, dataset, row, baseline) for dataset in datasets]
    seeds = sorted(set.intersection(*map(set, by_dataset))) if by_dataset else []
    values = [fmean(found[seed] for found in by_dataset) for seed in seeds]
    if not values:
        return Estimate(reason="no complete seed")
    # The sample standard deviation. Accuracy tables have the population standard deviation, as DomainBed has.
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(fmean(values), error, len(values))


def _seed_differences(chosen: Chosen, dataset: str, row: str, baseline: str) -> dict[int, float]:
    """Return the mean difference over the held-out domains, by seed, if every domain has both values."""
    by_seed: dict[int, list[float]] = {}
    expected = {domain for name, _, domain, _ in chosen if name == dataset}
    for (name, label, domain, seed), compared in chosen.items():
        reference = chosen.get((dataset, baseline, domain, seed))
        if name == dataset and label == row and compared is not None and reference is not None:
            by_seed.setdefault(seed, []).append(100 * (compared - reference))
    return {seed: fmean(values) for seed, values in by_seed.items() if len(values) == len(expected)}
