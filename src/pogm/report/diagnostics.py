"""Charts and tables of what probes measured: the paper's measurements, and whether POGM suits the data."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path
from random import Random

from pogm.benchmark.results.accuracy_tables import domains_of
from pogm.benchmark.results.conclusion import conclusion
from pogm.benchmark.results.measurements import (
    Measured,
    alignment_variances,
    conflicts,
    correlations,
    gaps,
    gip,
    hull,
    mean,
    read_measurements,
    relative_alignment_variances,
    worst,
)
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import Column, Row, Table
from pogm.report.escaping import escape, slug
from pogm.report.figure import Cloud, Figure, Line, Panel, Point
from pogm.report.markup import Exhibit, Html
from pogm.report.page import Section
from pogm.report.series import Sample, averaged, comparable, lines, small_charts

DOTS = 500  # largest number of dots of an algorithm in a scatter plot
GREY = 13  # index of the dashed grey line in the palette


@dataclass(frozen=True)
class Rounds:
    """Measurements of a run, and the numbers of every round that are computed from them."""

    measured: Measured
    numbers: Mapping[str, Sequence[float]]  # by the name of the measurement


ByRun = Mapping[Path, Rounds]  # by the folder of the run


@dataclass(frozen=True)
class Measurement:
    """A number for every measured round, and how to read it; no numbers if it was not measured."""

    name: str
    title: str
    y_label: str
    reading: str  # two sentences at most
    of: Callable[[Measured], Sequence[float]]


def _hull(m: Measured) -> list[float]:
    return [mean(place.distance for place in places) for places in hull(m)] if m.targets else []


def _hull_cosine(m: Measured) -> list[float]:
    return [mean(place.cosine for place in places) for places in hull(m)] if m.targets else []


def _divergence(m: Measured) -> list[float]:
    pairs = list(permutations(range(len(m.sources)), 2))
    return [mean(matrix[i][j] for i, j in pairs) for matrix in m.divergence or ()]


def _conflicts(m: Measured) -> list[float]:
    return [100 * conflicts(replace(m, gramian=[matrix])) for matrix in m.gramian]


MEASUREMENTS = (
    Measurement(
        "angle",
        "Average angle",
        "cos(hᵢ, h), mean over i",
        "Average angle: between the update h and what source domain i alone would do, hᵢ; higher serves more domains.",
        lambda m: [mean(angles) for angles in m.cosine],
    ),
    Measurement(
        "difference",
        "Norm difference",
        "‖θᵢ − θ⁺‖², mean over i",
        "Norm difference: how far the new weights are from those that domain i alone would reach; lower is closer.",
        lambda m: [mean(differences) for differences in m.difference],
    ),
    Measurement(
        "invariant",
        "Invariant angle",
        "cos(h, path of the last τ rounds)",
        "Invariant angle: between the update and the path so far; near 1 training goes straight, near 0 it fluctuates.",
        lambda m: m.invariant,
    ),
    Measurement(
        "magnitude",
        "Magnitude",
        "‖h‖²",
        "Magnitude: how long the update is; angles of very short updates say little.",
        lambda m: m.magnitude,
    ),
    Measurement(
        "gip",
        "Gradient inner product",
        "Σ hᵢ·hⱼ over i ≠ j",
        "Gradient inner product (GIP): the sum of hᵢ·hⱼ over all ordered pairs of source domains, in squared weight "
        "units; below 0 the domains conflict on average.",
        gip,
    ),
    Measurement(
        "alignment_variance",
        "Variance of alignment",
        "Var(hᵢ·h) over i",
        "Variance of alignment: the variance over source domains of hᵢ·h, the quantity of Theorem 2; it depends on the "
        "length of the step, so compare the relative variance below between algorithms.",
        alignment_variances,
    ),
)

SUITS = (
    Measurement(
        "conflicts",
        "Do the source domains want different things?",
        "rounds with a conflict, %",
        "The share of rounds in which two source domains, each left to itself, would step against each other. Where it "
        "is near 0 % any mean serves everyone and POGM has little to mend; where it is high, the mean hurts someone.",
        _conflicts,
    ),
    Measurement(
        "worst",
        "Is there a step that helps every source domain?",
        "p*, relative to mean ‖hᵢ‖²",
        "p* is what the worst-off source domain gains along the best step near their mean, which is the step that POGM "
        "seeks. Above 0 such a step exists; at 0 or below, no step nearby helps all domains, and POGM cannot either.",
        worst,
    ),
    Measurement(
        "alignment_variance_relative",
        "Does the step serve all source domains equally?",
        "Var(hᵢ·h), relative",
        "The variance over source domains of hᵢ·h, divided by ‖h‖² and the mean of ‖hᵢ‖², so that step lengths cancel. "
        "At 0 the step serves all source domains equally; POGM maximises the smallest hᵢ·d.",
        relative_alignment_variances,
    ),
    Measurement(
        "hull",
        "Is the unseen domain within reach of the sources?",
        "distance from the hull, relative",
        "How far the unseen domain's own step lies from all mixtures of the source domains' steps, as a share of its "
        "length: at 0 it is such a mixture, as the theory assumes. Near 1 the sources say nothing about it, and no way "
        "of weighting them will.",
        _hull,
    ),
    Measurement(
        "hull_cosine",
        "Does the unseen domain share a direction with the sources?",
        "cosine with the nearest mixture",
        "The cosine of the unseen domain's own step and the nearest mixture of the source domains' steps. Near 1 a "
        "step for the sources also serves the unseen domain; near 0 the sources say nothing about it.",
        _hull_cosine,
    ),
    Measurement(
        "divergence",
        "Do models of single domains predict alike?",
        "KL(pᵢ ‖ pⱼ), mean over pairs",
        "How differently models that each took one more step on a domain of their own predict the same images. This is "
        "the part of the theory's bound that training can lower; where it grows, the domains pull apart.",
        _divergence,
    ),
)

RAW = ("gip", "alignment_variance")  # charts of each dataset; listed with the diagnostics
LISTED = (*SUITS, *(one for one in MEASUREMENTS if one.name in RAW))  # columns of the table of numbers


def rounds_of(runs: Sequence[Run]) -> ByRun:
    """Return the measurements of those runs that can be averaged."""
    every, datasets = (*MEASUREMENTS, *SUITS), dict.fromkeys(run.dataset for run in runs)
    usable = (run for dataset in datasets for _, _, alike in comparable(runs, dataset) for run in alike)
    found = ((run.folder, read_measurements(run)) for run in usable)
    return {folder: Rounds(m, {one.name: one.of(m) for one in every}) for folder, m in found if m is not None}


def over_training(
    runs: Iterable[Run], dataset: str, rounds: ByRun, measurement: Measurement, held_out: int | None = None
) -> list[Line]:
    """Return one line per algorithm: a measurement over steps, as means of the rounds between two records."""

    def samples(run: Run) -> Iterator[Sample]:
        if run.folder not in rounds or held_out not in (None, *run.test_domains):
            return
        values = iter(rounds[run.folder].numbers[measurement.name])
        for record in run.records:
            here = [next(values, math.nan) for _ in record.get("rounds", {}).get("round", ())]
            if not math.isnan(value := mean(here)):
                yield run.trial_seed, record["step"], value

    return lines(runs, dataset, samples)


def measurements(runs: Sequence[Run], dataset: str, rounds: ByRun) -> list[Figure]:
    """Return figures of the paper's measurements, and scatter plots of cosines."""
    name = slug(dataset).replace("-", "_")
    found = {m: over_training(runs, dataset, rounds, m) for m in MEASUREMENTS}
    panels = tuple(Panel(m.title, (*drawn,), y_label=m.y_label) for m, drawn in found.items() if drawn)
    if not panels:
        return []
    reading = " ".join(m.reading for m, drawn in found.items() if drawn)
    notes = ("A point is the mean of the rounds since the last one, and over what is held out.", *averaged(panels))
    return [
        Figure(f"{name}_measurements", "What the updates do", panels, reading, notes),
        *_scatter(runs, dataset, rounds),
    ]


def _scatter(runs: Sequence[Run], dataset: str, rounds: ByRun) -> list[Figure]:
    """Scatter plots of the cosines of two source domains with the step, one panel per algorithm."""
    clouds, titles, most, trials = [], [], 0, 0
    for colour, label, alike in comparable(runs, dataset):
        found = [rounds[run.folder].measured for run in alike if run.folder in rounds]
        dots = [Point(a, b) for m in found for angles in m.cosine for a, b in combinations(angles, 2)]
        dots = [dot for dot in dots if not math.isnan(dot.x + dot.y)]
        if dots:
            correlation = mean(value for m in found for value in correlations(m).values())
            gap = mean(value for m in found for value in gaps(m).values())
            titles.append(f"{label}: ρ = {correlation:.2f}, gap {gap:.2f}".replace("-", "−"))
            clouds.append(Cloud(label, tuple(Random(0).sample(dots, min(DOTS, len(dots)))), colour))
            most, trials = max(most, len(dots)), max(trials, len(found))
    if not clouds:
        return []
    ends = [end for cloud in clouds for dot in cloud.points for end in dot[:2]]
    span = min(ends), max(ends)
    diagonal = Line("", tuple(Point(end, end) for end in span), GREY)
    panels = tuple(
        Panel(title, (diagonal, cloud), "cos(hᵢ, h)", "cos(hⱼ, h)", span, span, square=True)
        for title, cloud in zip(titles, clouds, strict=True)
    )
    reading = (
        "Every dot is one round and one pair of source domains: how well the update agrees with either. On the "
        "diagonal it serves both alike; dots along it, a high ρ and a small gap, are what gradient matching is after."
    )
    notes = [
        "ρ is Pearson's correlation over rounds and the gap the mean of |cos(hᵢ, h) − cos(hⱼ, h)|, both of all rounds "
        f"and then averaged over pairs and runs, n = {trials} runs of an algorithm at most."
    ]
    if most > DOTS:
        notes.append(f"Of up to {most} dots of an algorithm, {DOTS} are drawn, chosen at random.")
    name = slug(dataset).replace("-", "_")
    return [
        Figure(f"{name}_scatter", "Angles of two source domains, against each other", panels, reading, tuple(notes))
    ]


def suits(runs: Sequence[Run], rounds: ByRun) -> list[Section]:
    """Return the section that says if POGM suits the data; empty if nothing was measured."""
    if not rounds:
        return []
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    exhibits: list[Exhibit] = [_numbers(runs, rounds)]
    for measurement in SUITS:
        by_title: dict[str, list[Line]] = {}
        for dataset in datasets:
            if measurement.name in ("hull", "hull_cosine"):  # one chart for each held-out domain
                domains = domains_of(run for run in runs if run.dataset == dataset)
                for place, domain in enumerate(domains):
                    found = over_training(runs, dataset, rounds, measurement, place)
                    by_title[f"{dataset}, held out: {domain}"] = found
            else:
                by_title[dataset] = over_training(runs, dataset, rounds, measurement)
        name = f"suits_{measurement.name}"
        exhibits += small_charts(name, measurement.title, by_title, measurement.y_label, measurement.reading)
    return [Section("Does POGM suit these data?", (*exhibits, _conclusion(runs, rounds)), INTRODUCTION)]


def _conclusion(runs: Sequence[Run], rounds: ByRun) -> Html:
    """One paragraph for each dataset: what the measurements mean, and a recommendation."""
    paragraphs = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        alike = {label: [run for run in found if run.folder in rounds] for _, label, found in comparable(runs, dataset)}
        by_label = {label: [rounds[run.folder].measured for run in found] for label, found in alike.items() if found}
        if by_label:
            *findings, last = conclusion(by_label)
            paragraphs.append(
                f"<p><b>{escape(dataset)}.</b> {escape(' '.join(findings))}</p><p><b>{escape(last)}</b></p>"
            )
    return Html("".join(['<h3 class="conclusion">Conclusion</h3>', *paragraphs]))


INTRODUCTION = """
POGM looks for one update that serves every source domain. It has something to mend where the domains want different
things, it can mend that where some update near the mean helps all of them, and the unseen domain gains as far as it
resembles a mixture of the sources. What was measured of this, on these runs, whatever they were trained with:
"""


def _numbers(runs: Sequence[Run], rounds: ByRun) -> Table:
    """Return one row per dataset and algorithm: means over rounds, then over runs."""
    columns = (
        Column("Dataset", kind="text"),
        Column("Algorithm", kind="text"),
        *(Column(one.y_label, kind="number", digits="#.3g", csv_digits=".6g", missing="–") for one in LISTED),
        Column("n", kind="number"),
    )
    rows = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        for _, label, alike in comparable(runs, dataset):
            found = [rounds[run.folder].numbers for run in alike if run.folder in rounds]
            if found:
                means = (mean(mean(numbers[one.name]) for numbers in found) for one in LISTED)
                rows.append(Row((dataset, label, *means, len(found))))
    note = (
        "Means over rounds, then over finished runs with the algorithm's first configuration, n of them: all trial "
        "seeds and all that was held out, one domain at a time. No model is selected: every measured round counts."
    )
    return Table("In numbers", columns, tuple(rows), footnotes=(note,))
