"""Series of the charts: a measurement over steps, one line per algorithm."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from pogm.benchmark.results.accuracy_tables import labels_of
from pogm.benchmark.results.records import Run, accuracy, finite
from pogm.benchmark.results.statistics import mean_of
from pogm.report.axes import extent
from pogm.report.figure import Figure, Line, Panel, Point

ANGLE, ACCURACY = "cos(hᵢ, h)", "accuracy, %"

AVERAGED = (
    "Lines are means over trial seeds, of finished runs with an algorithm's first configuration (its defaults, where "
    "they were run); bands are ± one standard error."
)

Sample = tuple[int, int, float]  # trial seed, step, value


def curves(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Line]:
    """Accuracy in percent on a held-out domain (or on all, averaged) over steps: one line per algorithm."""

    def samples(run: Run) -> Iterator[Sample]:
        (held_out,) = run.test_domains
        if domain in (None, held_out):
            for record in run.records:
                yield run.trial_seed, record["step"], 100 * accuracy(record, "in", held_out)

    return lines(runs, dataset, samples)


def angles(runs: Iterable[Run], dataset: str, domain: int | None = None) -> list[Line]:
    """cos(h_i, h) of a source domain i (or of all, averaged) over steps: one line per algorithm.

    Where a step did not move, the angle is undefined and the mean is over the rest.
    """

    def samples(run: Run) -> Iterator[Sample]:
        for record in run.records:
            measured = (record.get("metrics") or {}).get("cosine")
            if isinstance(measured, list) and len(measured) == len(run.train_domains):
                for source, value in zip(run.train_domains, map(finite, measured), strict=True):
                    if domain in (None, source) and not math.isnan(value):
                        yield run.trial_seed, record["step"], value

    return lines(runs, dataset, samples)


def small_charts(
    name: str, title: str, by_title: Mapping[str, Sequence[Line]], y_label: str, reading: str, ceiling: float = math.inf
) -> list[Figure]:
    """One figure of small charts on one scale; none where nothing was measured."""
    drawn = {title: found for title, found in by_title.items() if found}
    extents = [span for found in drawn.values() if (span := extent(found))]
    if not extents:
        return []
    y_range = min(low for low, _ in extents), min(ceiling, max(high for _, high in extents))
    panels = tuple(Panel(title, (*found,), y_label=y_label, y_range=y_range) for title, found in drawn.items())
    return [Figure(name, title, panels, " ".join(reading.split()), averaged(panels))]


def averaged(panels: Iterable[Panel]) -> tuple[str, str]:
    """Return a note that describes the lines and states the number of trials."""
    counts = {point.n for panel in panels for line in panel.marks for point in line.points}
    trials = f"n = {max(counts)} trial{'s' * (max(counts) > 1)}{', fewer at some points' * (len(counts) > 1)}."
    return AVERAGED, trials


def lines(runs: Iterable[Run], dataset: str, samples: Callable[[Run], Iterator[Sample]]) -> list[Line]:
    """Means over what a trial seed has at a step, then mean and standard error over trial seeds."""
    found = []
    for colour, label, alike in comparable(runs, dataset):
        by_step: dict[int, dict[int, list[float]]] = {}
        for run in alike:
            for seed, step, value in samples(run):
                by_step.setdefault(step, {}).setdefault(seed, []).append(value)
        points = tuple(_point(step, [fmean(v) for v in by_step[step].values()]) for step in sorted(by_step))
        if points:
            found.append(Line(label, points, colour))
    return found


def comparable(runs: Iterable[Run], dataset: str) -> Iterator[tuple[int, str, list[Run]]]:
    """Return, for every algorithm, its index in the palette, its label, and its runs that may be averaged.

    These are finished and hold out one domain, with the algorithm's first configuration (its defaults): a mean over a
    random search would show the search.
    """
    runs = list(runs)
    for colour, label in enumerate(labels_of(runs)):
        usable = [r for r in runs if (r.dataset, r.label, len(r.test_domains)) == (dataset, label, 1) and r.done]
        first = min((run.hparams_seed for run in usable), default=0)
        usable = [run for run in usable if run.hparams_seed == first]
        twins = Counter((run.test_domains, run.trial_seed) for run in usable)
        # As in selection: never mix settings.
        yield colour, label, [run for run in usable if twins[run.test_domains, run.trial_seed] == 1]


def mean_point(x: float, values: Iterable[float]) -> Point:
    """Return mean, standard error and n of the values that are not NaN, at x; a gap if there are none."""
    found = mean_of(values)
    return Point(x, found.value, found.error or 0.0, found.n) if found.n else Point(x, math.nan)


def _point(step: int, values: Sequence[float]) -> Point:
    """A gap where one of them is missing: the mean of the others would be another line's."""
    return Point(step, math.nan) if any(map(math.isnan, values)) else mean_point(step, values)
