"""Series of the charts: a measurement over steps, one line per algorithm."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from pogm.benchmark.results.accuracy_tables import R2
from pogm.benchmark.results.record_file import accuracy, finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.statistics import mean_of
from pogm.report.figure import Figure, Line, Panel, Point, y_extent

COSINE, ACCURACY = "cos(hᵢ, h)", "accuracy, %"

MEANS = (
    "Lines are means over trial seeds of finished runs with the first configuration of an algorithm (its defaults, if "
    "they were run); bands are ± one standard error."
)

Sample = tuple[int, int, float]  # trial seed, step, value
Group = tuple[int, str, list[Run]]  # index in the palette, label, and runs of an algorithm


def score_label(runs: Iterable[Run], dataset: str) -> str:
    """Return the label of the axis of `curves`."""
    return R2 if any(run.task == "regression" for run in runs if run.dataset == dataset) else ACCURACY


def curves(groups: Iterable[Group], domain: int | None = None) -> list[Line]:
    """Return the accuracy in percent, or 100 R², on a held-out domain over steps, one line per algorithm.

    Args:
        groups: Runs of each algorithm, from `comparable`.
        domain: Index of the held-out domain; None for the mean over all.
    """

    def samples(run: Run) -> Iterator[Sample]:
        (held_out,) = run.test_domains
        if domain in (None, held_out):
            for record in run.records:
                yield run.trial_seed, record["step"], 100 * accuracy(record, "in", held_out)

    return lines(groups, samples)


def cosines(groups: Iterable[Group], domain: int | None = None) -> list[Line]:
    """Return cos(h_i, h) of a source domain i over steps, one line per algorithm.

    If a step did not move the weights, its cosine is undefined and left out of the mean.

    Args:
        groups: Runs of each algorithm, from `comparable`.
        domain: Index of the source domain; None for the mean over all.
    """

    def samples(run: Run) -> Iterator[Sample]:
        for record in run.records:
            measured = (record.get("metrics") or {}).get("cosine")
            if isinstance(measured, list) and len(measured) == len(run.train_domains):
                for source, value in zip(run.train_domains, map(finite, measured), strict=True):
                    if domain in (None, source) and not math.isnan(value):
                        yield run.trial_seed, record["step"], value

    return lines(groups, samples)


def small_charts(
    name: str,
    title: str,
    lines_by_title: Mapping[str, Sequence[Line]],
    y_label: str,
    explanation: str,
    ceiling: float = math.inf,
) -> list[Figure]:
    """Return one figure with a panel for each title, all with the same y axis; empty if there are no lines.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        lines_by_title: Lines of each panel by its title. A title without lines is left out.
        y_label: Label of the y axis.
        explanation: Text that explains how to read the figure.
        ceiling: Largest possible value; the y axis does not go beyond it.
    """
    y_range = y_extent(line for found in lines_by_title.values() for line in found)
    if y_range is None:
        return []
    y_range = y_range[0], min(ceiling, y_range[1])
    panels = tuple(
        Panel(title, (*found,), y_label=y_label, y_range=y_range) for title, found in lines_by_title.items() if found
    )
    return [Figure(name, title, panels, " ".join(explanation.split()), describe_means(panels))]


def describe_means(panels: Iterable[Panel]) -> tuple[str, str]:
    """Return notes that describe the lines and state the number of trials."""
    counts = {point.n for panel in panels for line in panel.marks for point in line.points}
    trials = f"n = {max(counts)} trial{'s' * (max(counts) > 1)}{', fewer at some points' * (len(counts) > 1)}."
    return MEANS, trials


def lines(groups: Iterable[Group], samples: Callable[[Run], Iterator[Sample]]) -> list[Line]:
    """Return one line per algorithm: the mean of the samples of a trial seed at each step, then over trial seeds."""
    found = []
    for colour, label, chosen in groups:
        by_step: dict[int, dict[int, list[float]]] = {}
        for run in chosen:
            for seed, step, value in samples(run):
                by_step.setdefault(step, {}).setdefault(seed, []).append(value)
        points = tuple(_point(step, [fmean(v) for v in by_step[step].values()]) for step in sorted(by_step))
        if points:
            found.append(Line(label, points, colour))
    return found


def comparable(runs: Iterable[Run], dataset: str, only_done: bool = True) -> list[Group]:
    """Return the index in the palette, the label, and the runs of every algorithm that may be averaged.

    These are finished runs that hold out one domain, with the first configuration of the algorithm (its defaults). A
    mean over a random search would show the search. Runs that differ in more than their seeds are left out. Unfinished
    runs are used, too, if ``only_done`` is False.
    """
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        usable = by_label.setdefault(run.label, [])
        if run.dataset == dataset and (run.done or not only_done) and len(run.test_domains) == 1:
            usable.append(run)
    groups = []
    for colour, (label, usable) in enumerate(by_label.items()):
        first = min((run.hparams_seed for run in usable), default=0)
        chosen = [run for run in usable if run.hparams_seed == first]
        counts = Counter((run.test_domains, run.trial_seed) for run in chosen)
        groups.append((colour, label, [run for run in chosen if counts[run.test_domains, run.trial_seed] == 1]))
    return groups


def mean_point(x: float, values: Iterable[float]) -> Point:
    """Return mean, standard error and n of the values that are not NaN, at x; a gap if there are none."""
    found = mean_of(values)
    return Point(x, found.value, found.error, found.n) if found.n else Point(x, math.nan)


def _point(step: int, values: Sequence[float]) -> Point:
    """Return the mean at a step, or a gap if a value is missing, because the mean of the rest is not comparable."""
    return Point(step, math.nan) if any(map(math.isnan, values)) else mean_point(step, values)
