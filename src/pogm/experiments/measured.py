"""The measured runs that Figures 2 to 5 share: five methods, the first domain held out, default hyperparameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pogm.algorithms import algorithm_class
from pogm.benchmark.measures import Measured, measured
from pogm.benchmark.records import Record, Run
from pogm.benchmark.spread import mean_of
from pogm.benchmark.trial import Trial
from pogm.datasets import dataset_class
from pogm.experiments.base import Scale, default_trial, in_time
from pogm.experiments.palette import METHODS
from pogm.probes import Probe
from pogm.report.figure import Line, Point

COMPARED = ("ERM", "Fish", "Fishr", "POGM", "Reptile")  # the paper's four, and POGM without matching (κ = 0)
HELD_OUT = 0
NETWORK = "resnet18"  # for photographs, as in the authors' figures
AVERAGED = (
    "Measurements are means over the rounds since the evaluation before, of which the first, after one round, is left "
    "out; lines are means over trials, bands ± one standard error."
)


def datasets(scale: Scale, printed: Sequence[str]) -> tuple[str, ...]:
    """Those of the scale that the paper's figure shows; all of the scale's where it shows none of them."""
    return tuple(name for name in scale.datasets if name in printed) or scale.datasets


def trials(scale: Scale, printed: Sequence[str]) -> list[Trial]:
    """Every method on these datasets, in rounds that are measured as often as the scale says."""
    probe = Probe.each(scale.probe_every)
    planned = []
    for dataset in datasets(scale, printed):
        large = dataset_class(dataset).large and scale.network is None
        suited = replace(scale, network=NETWORK) if large else scale
        for method in map(algorithm_class, COMPARED):
            algorithm = method(**in_time(method, scale))
            planned += [
                default_trial(suited, dataset, algorithm, HELD_OUT, seed, probe=probe) for seed in range(scale.seeds)
            ]
    return planned


def finished(runs: Sequence[Run], dataset: str, method: str) -> list[tuple[Run, Measured]]:
    """The finished runs of a method on a dataset, with what was measured on them, by trial seed."""
    own = [run for run in runs if (run.dataset, run.label, run.done) == (dataset, method, True)]
    both = [(run, measured(run)) for run in sorted(own, key=lambda run: run.trial_seed)]
    return [(run, found) for run, found in both if found is not None]


def curves(runs: Sequence[Run], dataset: str, value: Callable[[Record, Measured], float]) -> tuple[Line, ...]:
    """A value at every evaluation but the first, mean and standard error over trials: a line for each method.

    ``value`` is handed the record, and what was measured since the one before.
    """
    lines = []
    for method in COMPARED:
        by_step: dict[int, list[float]] = {}
        for run, _ in finished(runs, dataset, method):
            for record in run.records[1:]:
                since = measured(replace(run, records=(record,)))
                if since is not None:
                    by_step.setdefault(record["step"], []).append(value(record, since))
        if by_step:
            means = {step: mean_of(values) for step, values in sorted(by_step.items())}
            points = tuple(Point(step, *mean) if mean.n else Point(step, math.nan) for step, mean in means.items())
            lines.append(Line(method, points, METHODS[method]))
    return tuple(lines)


def note(runs: Sequence[Run], shown: Sequence[str], scale: Scale) -> str:
    """What was measured, and on how many runs."""
    count = sum(len(finished(runs, dataset, method)) for dataset in shown for method in COMPARED)
    other = ", ".join(f"{name} {value:g}" for name, value in in_time(algorithm_class("Fishr"), scale).items())
    every, bent = "every round", ""
    if scale.probe_every > 1:
        every, bent = f"one round in {scale.probe_every}", ", which makes angles look smaller than they are"
    return (
        f"{count} finished runs: {', '.join(COMPARED)}, the first domain held out, default hyperparameters"
        f"{f' but Fishr ({other})' if other else ''}; {every} measured{bent}."
    )
