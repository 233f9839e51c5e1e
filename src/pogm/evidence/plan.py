"""The plan of the evidence sweeps (results/PLAN.md): which runs are missing, what they cost, and their commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pogm.algorithms import algorithm_class
from pogm.benchmark.catalogue import cost_ratios
from pogm.benchmark.costs.reference import run_cost
from pogm.benchmark.plan.shared_training import training_key
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import Run
from pogm.evidence.sweeps import VARIANT_SWEEPS, Sweep
from pogm.experiments.base import Row
from pogm.experiments.pogm_variants import METHODS, decided_rows

SIMILAR_METHODS = dict.fromkeys(("OfficialPOGM", "MeasurementPOGM", "PaperTextPOGM", METHODS), "POGM")
CPU_SECONDS = {  # of a run of ERM, see docs/tables.md
    "HeartDisease": 0.4,
    "SpokenDigits": 2.6,
    "AmazonReviews": 4.0,
    "PACSFeatures": 2.0,
    "OfficeCaltech10Features": 1.0,
}
CPU_COLUMNS = {"cnn1d": "CPU, mnist_cnn"}  # of the measured costs, for networks without a column of their own
HEAD = """\
# Plan of the evidence sweeps

This file is generated: `python benchmarks/update_results.py` writes it from the records in this folder. The sweeps are
those of the [protocol](PROTOCOL.md). A row is complete if every held-out domain has a run with every seed that the
protocol needs; runs of further seeds are counted as finished, but never as missing.

Times are estimates from the costs that the package contains (`src/pogm/benchmark/costs.json`, `reference_costs.json`,
and docs/tables.md for the CPU). GPU time is that of one NVIDIA H200, with evaluations. CPU time is that of one core;
`--workers` runs several processes. Methods whose cost was not measured are counted as unknown; variants of POGM are
counted as POGM.

To continue a sweep, name its archive; it is written if it does not exist yet:

    python benchmarks/continue_sweep.py results/mnist/colored_mnist.tar.gz --data DATA --minutes 60

The script unpacks the finished runs, runs the command of the sweep until the time is over, and packs the runs that have
finished since. Options of `pogm experiment` can follow, such as `--workers 2`, `--algorithms "ROW"`, or `--weights`
with the path of the file. If the command below names rows, pass them with `--algorithms`. Then `python
benchmarks/update_results.py` updates the tables and this plan. Sweeps of variants and ablations of POGM, and of fewer
domains, have some runs in common with the evidence; these are trained and packed once. Rows that differ only in weight
averages are trained once; name them all in `--algorithms`.
"""


@dataclass(frozen=True)
class MissingRow:
    """A row of a sweep that is not complete."""

    name: str
    done: int  # finished runs of those that it needs
    missing: int
    seconds: float | None  # of all missing runs; None if it is unknown
    trained_with: str = ""  # row before it, if that row trains all of them, so that they need no time of their own


def missing_rows(sweep: Sweep, runs: Sequence[Run]) -> list[MissingRow]:
    """Return the rows of a sweep that are not complete, in the order of their priority."""
    finished = {run.id for run in sweep.find_runs(runs)}
    found = []
    trained: dict[str, str] = {}  # row by what it trains
    for row, trials in sweep.needed.items():
        left = [trial for trial in trials if trial.id not in finished]
        others = {trained.setdefault(training_key(trial), row.name) for trial in left}
        adapts = any(modifier.sees_at_test for modifier in trials[0].modifiers)  # its evaluations take time
        if len(others) == 1 and row.name not in others and not adapts:
            found.append(MissingRow(row.name, len(trials) - len(left), len(left), 0.0, others.pop()))
        elif left:
            found.append(MissingRow(row.name, len(trials) - len(left), len(left), _seconds(sweep, row, left)))
    return found


def _seconds(sweep: Sweep, row: Row, trials: Sequence[Trial]) -> float | None:
    method = SIMILAR_METHODS.get(row.algorithm.partition(":")[0], row.algorithm)
    if not sweep.on_gpu:
        column = CPU_COLUMNS.get(sweep.network, f"CPU, {sweep.network}")
        ratios = cost_ratios(" + ".join((method, *row.modifiers)), column)
        return None if ratios is None else ratios[0] * CPU_SECONDS[sweep.dataset] * len(trials)
    if any(modifier.sees_at_test for modifier in trials[0].modifiers):
        return None  # adapting to batches of test images takes most of the time, and was not measured
    algorithm = trials[0].algorithm if method == row.algorithm else algorithm_class(method)()
    cost = run_cost(replace(trials[0], algorithm=algorithm))
    if cost.train_seconds is None:
        return None
    return (cost.train_seconds + (cost.evaluation_seconds or 0.0)) * len(trials)


def plan_text(runs: Mapping[Sweep, Sequence[Run]]) -> str:
    """Return the plan as Markdown.

    Args:
        runs: Runs of all sweeps, see `pogm.evidence.archives.read_all`.
    """
    variants = {sweep.dataset: sweep.complete_rows(runs[sweep]) for sweep in VARIANT_SWEEPS if sweep in runs}
    decided = decided_rows(variants)
    lines = [HEAD, "| sweep | complete rows | finished runs | missing runs | time |", "|---|---|---|---|---|"]
    sections = []
    for sweep, found in runs.items():
        planned, incomplete = len(sweep.plan), missing_rows(sweep, found)
        rows = [row for row in incomplete if sweep not in VARIANT_SWEEPS or row.name not in decided]
        left = sum(row.missing for row in rows)
        done = len({run.id for run in sweep.find_runs(found)} & sweep.row_names.keys())
        cells = [sweep.title, f"{planned - len(incomplete)} of {planned}", f"{done:,}", f"{left:,}", _time(sweep, rows)]
        lines.append(f"| {' | '.join(cells)} |")
        unneeded = [row.name for row in incomplete if row not in rows]
        sections += ["", f"## {sweep.title}", "", *_section(sweep, rows, unneeded)]
    return "\n".join(lines + sections) + "\n"


def _section(sweep: Sweep, rows: Sequence[MissingRow], unneeded: Sequence[str]) -> Iterator[str]:
    waiting = {row.name for row in rows}.union(unneeded)
    complete = [row.name for row in sweep.plan if row.name not in waiting]
    yield f"Complete: {'; '.join(complete) or 'none'}."
    if unneeded:
        yield from ("", f"{len(unneeded)} other rows are not needed to decide which variants succeed.")
    if not rows:
        return
    yield from (
        "",
        f"Archive: `results/{sweep.archive}`. Command:",
        "",
        f"    {sweep.command([row.name for row in rows] if unneeded else ())}",
        "",
        "| missing row | finished runs | missing runs | time |",
        "|---|---|---|---|",
    )
    for row in rows:
        time = f"trained with {row.trained_with}" if row.trained_with else _time(sweep, [row])
        yield f"| {row.name} | {row.done} | {row.missing} | {time} |"


def _time(sweep: Sweep, rows: Sequence[MissingRow]) -> str:
    """Return the time of the missing runs as text, such as "12.3 GPU minutes, and 3 rows of unknown time"."""
    rows = [row for row in rows if not row.trained_with]
    known = [row.seconds for row in rows if row.seconds is not None]
    unknown = len(rows) - len(known)
    if not rows:
        return "–"
    if not known:
        return "unknown"
    text = f"{sum(known) / 60:,.1f} {'GPU' if sweep.on_gpu else 'CPU'} minutes"
    return f"{text}, and {unknown} row{'s' * (unknown > 1)} of unknown time" if unknown else text
