"""What the charts show: a measurement over steps, one line per algorithm."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, pstdev

from pogm.benchmark.charts import Point, Series
from pogm.benchmark.records import Run, accuracy, finite
from pogm.benchmark.tables import labels_of

ANGLE, ACCURACY = "cos(hᵢ, h)", "accuracy, %"

Sample = tuple[int, int, float]  # trial seed, step, value


def curves(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Series]:
    """Accuracy in percent on a held-out domain (or on all, averaged) over steps: one series per algorithm."""

    def samples(run: Run) -> Iterator[Sample]:
        (held_out,) = run.test_domains
        if domain in (None, held_out):
            for record in run.records:
                yield run.trial_seed, record["step"], 100 * accuracy(record, "in", held_out)

    return _series(runs, dataset, samples)


def angles(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Series]:
    """cos(h_i, h) of a source domain i (or of all, averaged) over steps: one series per algorithm.

    Where a step did not move, the angle is undefined and the mean is over the rest.
    """

    def samples(run: Run) -> Iterator[Sample]:
        for record in run.records:
            measured = (record.get("metrics") or {}).get("angle")
            if isinstance(measured, list) and len(measured) == len(run.train_domains):
                for source, value in zip(run.train_domains, map(finite, measured), strict=True):
                    if domain in (None, source) and not math.isnan(value):
                        yield run.trial_seed, record["step"], value

    return _series(runs, dataset, samples)


def _series(runs: Iterable[Run], dataset: str, samples: Callable[[Run], Iterator[Sample]]) -> list[Series]:
    """Means over what a trial seed has at a step, then mean and standard error over trial seeds.

    From finished runs that hold out one domain, with the algorithm's first configuration (its defaults):
    a mean over a random search would show the search.
    """
    runs = list(runs)
    found = []
    for colour, label in enumerate(labels_of(runs)):
        usable = [r for r in runs if (r.dataset, r.label, len(r.test_domains)) == (dataset, label, 1) and r.done]
        first = min((run.hparams_seed for run in usable), default=0)
        usable = [run for run in usable if run.hparams_seed == first]
        twins = Counter((run.test_domains, run.trial_seed) for run in usable)
        by_step: dict[int, dict[int, list[float]]] = {}
        for run in usable:
            if twins[run.test_domains, run.trial_seed] == 1:  # as in selection: never mix settings
                for seed, step, value in samples(run):
                    by_step.setdefault(step, {}).setdefault(seed, []).append(value)
        points = tuple(_point(step, [fmean(v) for v in by_step[step].values()]) for step in sorted(by_step))
        if points:
            found.append(Series(label, points, colour))
    return found


def _point(step: int, values: Sequence[float]) -> Point:
    mean = fmean(values)
    spread = 0.0 if math.isnan(mean) else pstdev(values) / math.sqrt(len(values))
    return Point(step, mean, spread, len(values))
