"""Charts and tables of the measurements of probes, and the section that says if POGM suits the data."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from pogm.benchmark.results.accuracy_tables import domains_of
from pogm.benchmark.results.conclusion import conclusion
from pogm.benchmark.results.measurements import (
    Measured,
    alignment_variances,
    conflicts,
    correlations,
    divergences,
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
from pogm.report.figure import Cloud, Figure, Line, Panel, Point
from pogm.report.page import Exhibit, Part, Section, slug
from pogm.report.series import Sample, comparable, describe_means, lines, small_charts

DOTS = 500  # largest number of dots of an algorithm in a scatter plot
GREY = 13  # index of dashed grey in the palette


@dataclass(frozen=True)
class Rounds:
    """Measurements of a run, and the numbers of every round that are computed from them."""

    measured: Measured
    numbers: Mapping[str, Sequence[float]]  # by the name of the measurement


ByRun = Mapping[Path, Rounds]  # by the folder of the run


@dataclass(frozen=True)
class Measurement:
    """A quantity that is computed for every measured round, and its explanation."""

    name: str
    title: str
    y_label: str
    explanation: str  # two sentences at most
    values: Callable[[Measured], Sequence[float]]  # one value per round; empty if not measured


def _hull(m: Measured) -> list[float]:
    return [mean(found.distance for found in by_target) for by_target in hull(m)] if m.targets else []


def _hull_cosine(m: Measured) -> list[float]:
    return [mean(found.cosine for found in by_target) for by_target in hull(m)] if m.targets else []


def _conflicts(m: Measured) -> list[float]:
    return [100 * conflicts(replace(m, gramian=[matrix])) for matrix in m.gramian]


MEASUREMENTS = (
    Measurement(
        "cosine",
        "Mean cosine",
        "cos(hᵢ, h), mean over i",
        'Cosine of the update h and the update hᵢ of source domain i alone ("average angle" in the paper).',
        lambda m: [mean(cosines) for cosines in m.cosine],
    ),
    Measurement(
        "difference",
        "Norm difference",
        "‖θᵢ − θ⁺‖², mean over i",
        "Norm difference: the distance of the new weights to the weights after training on domain i alone.",
        lambda m: [mean(differences) for differences in m.difference],
    ),
    Measurement(
        "invariant",
        "Invariant cosine",
        "cos(h, path of the last τ rounds)",
        'Cosine of the update and the path of the last τ rounds ("invariant angle" in the paper); low if both differ.',
        lambda m: m.invariant,
    ),
    Measurement(
        "magnitude",
        "Magnitude",
        "‖h‖²",
        "Magnitude: the squared length of the update; cosines of very short updates mean little.",
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
        "Variance of alignment: the variance of hᵢ·h over source domains, the quantity of Theorem 2; it depends on the "
        "length of the step, so compare algorithms by the relative variance below.",
        alignment_variances,
    ),
)

SUITS = (
    Measurement(
        "conflicts",
        "Do the source domains conflict?",
        "rounds with a conflict, %",
        "The share of rounds in which the updates of two source domains have a negative inner product. Near 0 % the "
        "mean helps every domain and POGM can improve little; if it is high, the mean harms some domain.",
        _conflicts,
    ),
    Measurement(
        "worst",
        "Is there a step that helps every source domain?",
        "p*, relative to mean ‖hᵢ‖²",
        "p* is the gain of the worst source domain for the best step near the mean, which is the step of POGM. Above 0 "
        "such a step exists; at 0 or below, no step near the mean helps all domains, and POGM cannot either.",
        worst,
    ),
    Measurement(
        "alignment_variance_relative",
        "Does the step help all source domains equally?",
        "Var(hᵢ·h), relative",
        "The variance over source domains of hᵢ·h, divided by ‖h‖² and the mean of ‖hᵢ‖², so that step lengths cancel. "
        "At 0 the step helps all source domains equally; POGM maximises the smallest hᵢ·h.",
        relative_alignment_variances,
    ),
    Measurement(
        "hull",
        "Is the unseen domain a mixture of the sources?",
        "distance from the hull, relative",
        "The distance of the update of the unseen domain from all mixtures of the updates of the source domains, "
        "relative to its length: at 0 it is such a mixture, as the theory assumes. Near 1 no weighting of the source "
        "domains resembles the unseen domain.",
        _hull,
    ),
    Measurement(
        "hull_cosine",
        "Does the unseen domain share a direction with the sources?",
        "cosine with the nearest mixture",
        "The cosine of the update of the unseen domain and the nearest mixture of the updates of the source domains. "
        "Near 1 a step for the sources also helps the unseen domain; near 0 they are unrelated.",
        _hull_cosine,
    ),
    Measurement(
        "divergence",
        "Do models of single domains agree in their predictions?",
        "KL(pᵢ ‖ pⱼ), mean over pairs",
        "The divergence of the predictions for the same images, between copies of the model that each took one more "
        "step on another domain. It is the part of the bound of the theory that training can lower; if it grows, the "
        "domains diverge.",
        divergences,
    ),
)

RAW = ("gip", "alignment_variance")  # charts of each dataset; listed with the diagnostics
LISTED = (*SUITS, *(one for one in MEASUREMENTS if one.name in RAW))  # columns of the table of numbers


def rounds_of(runs: Sequence[Run]) -> ByRun:
    """Return the measurements of those runs that can be averaged."""
    every, datasets = (*MEASUREMENTS, *SUITS), dict.fromkeys(run.dataset for run in runs)
    usable = (run for dataset in datasets for _, _, chosen in comparable(runs, dataset) for run in chosen)
    found = ((run.folder, read_measurements(run)) for run in usable)
    return {folder: Rounds(m, {one.name: one.values(m) for one in every}) for folder, m in found if m is not None}


def over_training(
    runs: Iterable[Run], dataset: str, rounds: ByRun, measurement: Measurement, held_out: int | None = None
) -> list[Line]:
    """Return one line per algorithm: a measurement over steps, as means of the rounds between two records."""

    def samples(run: Run) -> Iterator[Sample]:
        if run.folder not in rounds or held_out not in (None, *run.test_domains):
            return
        values = iter(rounds[run.folder].numbers[measurement.name])
        for record in run.records:
            since_last = [next(values, math.nan) for _ in (record.get("rounds") or {}).get("round", ())]
            if not math.isnan(value := mean(since_last)):
                yield run.trial_seed, record["step"], value

    return lines(comparable(runs, dataset), samples)


def measurements(runs: Sequence[Run], dataset: str, rounds: ByRun) -> list[Figure]:
    """Return figures of the paper's measurements, and scatter plots of cosines."""
    name = slug(dataset).replace("-", "_")
    found = {m: over_training(runs, dataset, rounds, m) for m in MEASUREMENTS}
    panels = tuple(Panel(m.title, (*curves,), y_label=m.y_label) for m, curves in found.items() if curves)
    if not panels:
        return []
    explanation = " ".join(m.explanation for m, curves in found.items() if curves)
    notes = ("A point is the mean over the rounds since the previous point and over held-out domains.",)
    return [
        Figure(f"{name}_measurements", "Updates during training", panels, explanation, notes + describe_means(panels)),
        *_scatter(runs, dataset, rounds),
    ]


def _scatter(runs: Sequence[Run], dataset: str, rounds: ByRun) -> list[Figure]:
    """Scatter plots of the cosines of two source domains with the step, one panel per algorithm."""
    clouds, titles, most, trials = [], [], 0, 0
    for colour, label, chosen in comparable(runs, dataset):
        found = [rounds[run.folder].measured for run in chosen if run.folder in rounds]
        dots = [Point(a, b) for m in found for cosines in m.cosine for a, b in combinations(cosines, 2)]
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
    explanation = (
        "Every dot is one round and one pair of source domains: the cosines of the update with both. On the diagonal "
        "both are equal. Gradient matching should give dots along the diagonal: a high ρ and a small gap."
    )
    notes = [
        "ρ is Pearson's correlation over rounds, and the gap is the mean of |cos(hᵢ, h) − cos(hⱼ, h)|; both use all "
        f"rounds and are means over pairs and over at most n = {trials} runs of an algorithm."
    ]
    if most > DOTS:
        notes.append(f"Of up to {most} dots of an algorithm, {DOTS} are drawn, chosen at random.")
    name = slug(dataset).replace("-", "_")
    return [
        Figure(f"{name}_scatter", "Cosines of pairs of source domains with the update", panels, explanation, (*notes,))
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
                for index, domain in enumerate(domains):
                    found = over_training(runs, dataset, rounds, measurement, index)
                    by_title[f"{dataset}, held out: {domain}"] = found
            else:
                by_title[dataset] = over_training(runs, dataset, rounds, measurement)
        name = f"suits_{measurement.name}"
        exhibits += small_charts(name, measurement.title, by_title, measurement.y_label, measurement.explanation)
    return [Section("Does POGM suit these data?", (*exhibits, _conclusion(runs, rounds)), INTRODUCTION)]


def _conclusion(runs: Sequence[Run], rounds: ByRun) -> Part:
    """Return the findings and a recommendation for each dataset."""
    conclusions = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        by_label = {
            label: [rounds[run.folder].measured for run in chosen if run.folder in rounds]
            for _, label, chosen in comparable(runs, dataset)
        }
        if by_label := {label: found for label, found in by_label.items() if found}:
            *findings, recommendation = conclusion(by_label)
            texts = (text.replace("h_i", "hᵢ").split("`") for text in (" ".join(findings), recommendation))
            conclusions.append((dataset, *texts))  # every second part is code
    return Part("conclusion", {"conclusions": conclusions})


INTRODUCTION = """
POGM looks for one update that helps every source domain. It can improve on the mean if the domains conflict and if
some update near the mean helps all of them. The unseen domain gains if it resembles a mixture of the source domains.
The table and the charts show these conditions, measured on these runs, for every algorithm they were trained with.
"""


def _number_column(measurement: Measurement, rounds: ByRun) -> Column:
    """Return a column of the table of numbers. It is only in the CSV if nothing was measured."""
    is_known = any(not math.isnan(mean(found.numbers[measurement.name])) for found in rounds.values())
    text: dict[str, Any] = {"digits": "#.3g", "csv_digits": ".6g", "missing": "–", "csv_only": not is_known}
    return Column(measurement.y_label, kind="number", **text)


def _numbers(runs: Sequence[Run], rounds: ByRun) -> Table:
    """Return one row per dataset and algorithm: means over rounds, then over runs."""
    columns = (
        Column("Dataset", kind="text"),
        Column("Algorithm", kind="text"),
        *(_number_column(one, rounds) for one in LISTED),
        Column("n", kind="number"),
    )
    rows = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        for _, label, chosen in comparable(runs, dataset):
            found = [rounds[run.folder].numbers for run in chosen if run.folder in rounds]
            if found:
                means = (mean(mean(numbers[one.name]) for numbers in found) for one in LISTED)
                rows.append(Row((dataset, label, *means, len(found))))
    note = (
        "Means over all measured rounds, then over the n finished runs with the first configuration of the algorithm: "
        "all trial seeds and all held-out domains. There is no model selection. h is the update of the algorithm in a "
        "round, and hᵢ the update of source domain i alone. The charts explain the columns."
    )
    return Table("Measurements", columns, tuple(rows), footnotes=(note,))
