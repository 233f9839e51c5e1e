"""The measured runs that Figures 2 to 5 share: five methods, the first domain held out, default hyperparameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pogm.algorithms import algorithm_class
from pogm.benchmark.results.measurements import Measured, read_measurements
from pogm.benchmark.results.record_file import Record
from pogm.benchmark.results.records import Run
from pogm.diagnostics import Probe
from pogm.experiments.base import Plan, Row, Scale
from pogm.experiments.palette import METHODS
from pogm.experiments.trials import default_trial, shorten_schedules
from pogm.report.figure import Line
from pogm.report.series import mean_point

COMPARED = ("ERM", "Fish", "Fishr", "POGM", "Reptile")  # four methods of the paper, and Reptile as a control
HELD_OUT = 0
NETWORK = "resnet18"  # for photographs, as in the authors' figures
AVERAGED = (
    "A measurement is the mean over the rounds since the previous evaluation. The first evaluation, after one round, "
    "is left out. Lines are means over trials, bands ± one standard error."
)


def trials(scale: Scale, printed: Sequence[str]) -> Plan:
    """Plan every method on these datasets, with every round measured.

    A copy of the model keeps its own Adam state. With an interval between measurements that state differs from the
    state of the run, which lowers the cosines of ERM, Fish and Fishr but not those of POGM.
    """
    scale = replace(scale, large_network=scale.large_network or NETWORK)
    return {
        row: [
            default_trial(scale, dataset, row, HELD_OUT, seed, probe=Probe.each(1))
            for dataset in scale.printed(printed)
            for seed in range(scale.seeds)
        ]
        for row in map(Row, COMPARED)
        if scale.selects(row)
    }


def finished_runs(runs: Sequence[Run], dataset: str, method: str) -> list[tuple[Run, Measured]]:
    """Return the finished runs of a method on a dataset with their measurements, sorted by trial seed."""
    done = [run for run in runs if (run.dataset, run.label, run.done) == (dataset, method, True)]
    both = [(run, read_measurements(run)) for run in sorted(done, key=lambda run: run.trial_seed)]
    return [(run, found) for run, found in both if found is not None]


def curves(runs: Sequence[Run], dataset: str, value: Callable[[Record, Measured], float]) -> tuple[Line, ...]:
    """Return one line per method: mean and standard error over trials at every evaluation except the first.

    Args:
        runs: Measured runs.
        dataset: Name of the dataset.
        value: Function of a record and of the measurements since the previous record.
    """
    lines = []
    for method in COMPARED:
        by_step: dict[int, list[float]] = {}
        for run, _ in finished_runs(runs, dataset, method):
            for record in run.records[1:]:
                since = read_measurements(replace(run, records=(record,)))
                if since is not None:
                    by_step.setdefault(record["step"], []).append(value(record, since))
        if by_step:
            points = tuple(mean_point(step, values) for step, values in sorted(by_step.items()))
            lines.append(Line(method, points, METHODS[method]))
    return tuple(lines)


def note(runs: Sequence[Run], shown: Sequence[str], scale: Scale) -> str:
    """Return a note that says which runs were measured, and how many."""
    methods = [method for method in COMPARED if not runs or any(run.label == method for run in runs)]
    count = sum(len(finished_runs(runs, dataset, method)) for dataset in shown for method in methods)
    other = ", ".join(f"{name} {value:g}" for name, value in shorten_schedules(algorithm_class("Fishr"), scale).items())
    return (
        f"{count} finished runs: {', '.join(methods)}, the first domain held out, default hyperparameters"
        f"{f' except for Fishr ({other})' if other and 'Fishr' in methods else ''}; every round measured."
    )
