"""Scatter plots of the cosines of two domains with the step (Figures 2 and 3)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations

from pogm.benchmark.results.measurements import Measured, Pairs, correlations, gaps, mean
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.statistics import Mean, mean_of
from pogm.experiments import measured
from pogm.experiments.base import Scale
from pogm.experiments.measured import COMPARED, finished_runs
from pogm.experiments.palette import DASHED, GREY, METHODS
from pogm.report.figure import Cloud, Figure, Line, Panel, Point

EXPLANATION = (
    "A dot is one round and one pair of training domains: the cosine of the step with the trajectory of the first "
    "domain, cos(hᵢ, h), and of the second, cos(hⱼ, h). On the dashed line both are equal. ρ is the Pearson "
    "correlation over rounds, and the gap is the mean of |cos(hᵢ, h) − cos(hⱼ, h)|; both are means over pairs. Pairs "
    "differ in level, so all dots together look less correlated than each pair is. The paper expects the highest ρ and "
    "the smallest gap for POGM, because its direction maximises the smallest alignment. Its step contains a mixture of "
    "the hᵢ that it is compared with; the steps of ERM, Fish and Fishr do not. Reptile's step is the mean of the "
    "hᵢ, without matching: it shows how much of ρ comes from that alone."
)


def figure(
    name: str, title: str, methods: Sequence[str], datasets: Sequence[str], runs: Sequence[Run], scale: Scale
) -> Figure:
    """Return a figure with a panel for each dataset and method, and the numbers of all methods as notes."""
    panels = [found for dataset in datasets for method in methods for found in panel(runs, dataset, method)]
    below = (*notes(runs, datasets), measured.note(runs, datasets, scale))
    return Figure(name, title, tuple(panels), EXPLANATION, below)


def average_pairs(runs: Sequence[Run], dataset: str, method: str, of: Callable[[Measured], Pairs]) -> Mean:
    """Return the mean over pairs, then mean and standard error over trials."""
    return mean_of(mean(of(found).values()) for _, found in finished_runs(runs, dataset, method))


def panel(runs: Sequence[Run], dataset: str, method: str) -> list[Panel]:
    """Return a panel with the dots of the first trial and the ρ and gap of all trials; empty if not measured."""
    found = finished_runs(runs, dataset, method)
    if not found:
        return []
    dots = [
        Point(cosines[i], cosines[j])
        for cosines in found[0][1].cosine
        for i, j in combinations(range(len(cosines)), 2)
        if not math.isnan(cosines[i] + cosines[j])
    ]
    ends = span(runs, dataset)
    numbers = (average_pairs(runs, dataset, method, of).value for of in (correlations, gaps))
    rho, gap = (f"{number:.2f}".replace("-", "−") for number in numbers)
    diagonal = Line("equal cosines", tuple(Point(end, end) for end in ends), GREY + DASHED)
    return [
        Panel(
            f"{dataset}, {method} " + f"(ρ = {rho}, gap {gap})".replace(" ", "\N{NO-BREAK SPACE}"),
            (Cloud(method, tuple(dots), METHODS[method]), diagonal),
            "cos(hᵢ, h)",
            "cos(hⱼ, h)",
            ends,
            ends,
            square=True,
        )
    ]


def span(runs: Sequence[Run], dataset: str) -> tuple[float, float]:
    """Return the range of the cosines of all methods, for axes that can be compared."""
    first = chain.from_iterable(finished_runs(runs, dataset, method)[:1] for method in COMPARED)
    cosines = [cosine for _, found in first for cosine in chain.from_iterable(found.cosine) if not math.isnan(cosine)]
    low, high = min(cosines, default=-1.0), max(cosines, default=1.0)
    return math.floor(20 * low - 0.2) / 20, math.ceil(20 * high + 0.2) / 20


def notes(runs: Sequence[Run], datasets: Sequence[str]) -> tuple[str, ...]:
    """Return notes with ρ and gap of all methods."""
    written = []
    for dataset in datasets:
        rho, gap = (
            {m: number for m in COMPARED if (number := average_pairs(runs, dataset, m, of)).n}
            for of in (correlations, gaps)
        )
        if rho:
            highest, smallest = max(rho, key=lambda m: rho[m].value), min(gap, key=lambda m: gap[m].value)
            best = f"{highest} has the highest ρ and " + ("" if highest == smallest else f"{smallest} ")
            written.append(f"{dataset}: ρ {list_means(rho)}; gap {list_means(gap)}. {best}the smallest gap.")
    trials = max((len(finished_runs(runs, d, m)) for d in datasets for m in COMPARED), default=0)
    return (*written, f"Mean ± standard error of n = {trials} trials; the dots are those of the first.")


def list_means(numbers: Mapping[str, Mean]) -> str:
    """Return each method with its mean and, for two or more trials, its standard error."""
    parts = []
    for name, found in numbers.items():
        error = "" if found.error is None else f" ± {found.error:.2f}"
        parts.append(f"{name} {found.value:.2f}{error}")
    return ", ".join(parts).replace("-", "−")
