"""Tables of an evidence sweep: accuracies, paired differences to ERM, costs, variance between seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median, stdev
from typing import NamedTuple

from pogm.benchmark.results.accuracy_tables import AVERAGE, averages_table, dataset_table, labels_of
from pogm.benchmark.results.adaptation import adaptation_notes
from pogm.benchmark.results.paired import detectable, differences, interval
from pogm.benchmark.results.published import find_publication
from pogm.benchmark.results.record_file import finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Column, Estimate, Row, Table, estimate
from pogm.evidence.archives import Complete
from pogm.evidence.sweeps import Sweep
from pogm.experiments.base import ERM
from pogm.experiments.results import NOTHING, POINTS, compare_by_label, gain_column

SELECTIONS = {selection.name: selection for selection in (TRAINING_DOMAIN, TEST_DOMAIN)}
LEAST_SEEDS = 5  # of a corrected interval: with 3 it is up to 37 standard errors to each side and says nothing
PRINTED = 8  # columns of `evidence_table` that pages in Markdown have; the others depend on the machine
NOTES = (
    "Differences to ERM are paired by held-out domain and seed: mean ± standard error over n seeds, in percentage "
    "points. The 95 % interval is by Student's t, corrected by Bonferroni for the {rows} planned comparisons; ≠ marks "
    "an interval that excludes 0. Detectable is the smallest effect that a row would show with a probability of about "
    f"80 %. Rows with fewer than {LEAST_SEEDS} seeds are not tested: they have no interval. The last step is "
    "test-domain validation (oracle): with one configuration it chooses nothing.",
    "Time is that of training one run, without evaluations; of runs that trained as one batch, an equal share. Memory "
    "is that of the GPU in the process. Both depend on what else the machine did.",
)
SEED_NOTES = (
    "Standard deviation over n seeds of the mean over held-out domains, and of the domain where it is largest, with "
    "the lowest and the highest accuracy there. Percentage points.",
)
PUBLICATIONS = {"domainbed": "DomainBed (2020)", "official": "authors' repository", "paper": "paper, Table 1"}


def evidence_table(sweep: Sweep, runs: Sequence[Run]) -> Table:
    """Return the main table of a sweep: both selections, and differences to ERM.

    Args:
        sweep: The sweep.
        runs: Runs of its complete rows.
    """
    costs = run_costs(runs)
    compared = _compare(sweep, runs)
    return Table(
        title=f"{runs[0].dataset}: all methods against ERM",
        columns=(
            Column("accuracy", "training-domain validation", unit="%", csv_prefix="accuracy_"),
            *_gain_columns("difference"),
            Column("detectable", kind="number", unit=POINTS, missing=NOTHING),
            Column("last", "last step", unit="%", csv_prefix="last_"),
            *_gain_columns("last_difference"),
            Column("n", kind="number"),
            Column("seconds", "time, s", kind="number", missing=NOTHING),
            Column("gigabytes", "memory, GB", kind="number", missing=NOTHING),
        ),
        rows=tuple(
            Row((c.chosen, *c.gain, c.oracle, *c.oracle_gain[:2], c.n, *costs[label]), label)
            for label, c in compared.items()
        ),
        footnotes=(NOTES[0].format(rows=sweep.comparisons), NOTES[1], *adaptation_notes(runs)),
        row_key="algorithm",
    )


def search_table(sweep: Sweep, runs: Sequence[Run]) -> Table:
    """Return the table of a random search: accuracies, differences to ERM, and accuracies with the defaults.

    Args:
        sweep: The sweep.
        runs: Runs of its complete rows.
    """
    defaults = first_cells(averages_table([run for run in runs if run.hparams_seed == 0], TRAINING_DOMAIN))
    unselected = _means_of_configurations(runs)
    compared = _compare(sweep, runs)
    return Table(
        title=f"{runs[0].dataset}: random search of the best methods",
        columns=(
            Column("accuracy", "training-domain validation", unit="%", csv_prefix="accuracy_"),
            *_gain_columns("difference"),
            Column("detectable", kind="number", unit=POINTS, missing=NOTHING),
            Column("defaults", unit="%", csv_prefix="defaults_"),
            Column("oracle", unit="%", csv_prefix="oracle_"),
            *_gain_columns("oracle_difference"),
            Column("mean", "mean of all configurations", unit="%", csv_prefix="mean_"),
            Column("n", kind="number"),
        ),
        rows=tuple(
            Row((c.chosen, *c.gain, defaults[label], c.oracle, *c.oracle_gain[:2], unselected[label], c.n), label)
            for label, c in compared.items()
        ),
        row_key="algorithm",
    )


class _Compared(NamedTuple):
    """Results of a row of a sweep under both selections, with its differences to ERM; see `_gain_cells`."""

    chosen: Estimate  # training-domain validation
    gain: tuple[Estimate, str, float]
    oracle: Estimate  # test-domain validation
    oracle_gain: tuple[Estimate, str, float]
    n: int


def _compare(sweep: Sweep, runs: Sequence[Run]) -> dict[str, _Compared]:
    """Return the results of every row by label."""
    both = (TRAINING_DOMAIN, TEST_DOMAIN)
    chosen, oracle = (first_cells(averages_table(runs, selection)) for selection in both)
    gains, oracle_gains = (first_cells(differences(runs, ERM.name, selection)) for selection in both)
    return {
        label: _Compared(
            chosen[label],
            _gain_cells(gains[label], sweep.comparisons, label),
            oracle[label],
            _gain_cells(oracle_gains[label], sweep.comparisons, label),
            gains[label].n,
        )
        for label in chosen
    }


class Signs(NamedTuple):
    """On how many datasets the corrected 95 % interval of the difference to ERM is above 0, contains 0, is below 0."""

    better: int = 0
    tied: int = 0
    worse: int = 0


def count_signs(complete: Complete) -> dict[str, Signs]:
    """Return on how many datasets each method is better than ERM, tied with it, and worse. ERM has only zeros."""
    counts: dict[str, Counter[str]] = {}
    for sweep, runs in complete.items():
        for label, gain in first_cells(differences(runs, ERM.name)).items():
            own = counts.setdefault(label, Counter())
            span = tested_interval(gain, sweep.comparisons)
            if label != ERM.name and span is not None:
                low, high = span
                own["better" if low > 0 else "worse" if high < 0 else "tied"] += 1
    return {label: Signs(**own) for label, own in counts.items()}


def findings_table(complete: Complete) -> Table:
    """Return one row for each sweep: ERM, POGM, the largest difference to ERM, and how many rows differ from it."""
    rows = []
    for sweep, runs in complete.items():
        gains = {label: gain for label, gain in first_cells(differences(runs, ERM.name)).items() if label != ERM.name}
        best = max(gains, key=lambda label: gains[label].mean or 0.0)
        cells = first_cells(averages_table(runs, TRAINING_DOMAIN))[ERM.name], gains.get("POGM", Estimate())
        signs = [sum(column) for column in zip(*count_signs({sweep: runs}).values(), strict=True)]
        rows.append(Row((*cells, best, *_gain_cells(gains[best], sweep.comparisons, best)[:2], *signs), sweep.title))
    return Table(
        title="Methods against ERM",
        columns=(
            Column("ERM", unit="%"),
            gain_column("POGM", "POGM: difference to ERM"),
            Column("method", "largest difference", kind="text"),
            *_gain_columns("difference"),
            *(Column(name, kind="number") for name in Signs._fields),
        ),
        rows=tuple(rows),
        selection=TRAINING_DOMAIN,
        row_key="dataset",
    )


def first_cells(table: Table) -> dict[str, Estimate]:
    """Return the first estimate of every row by label."""
    return {row.key: row.estimates[0] for row in table.rows}


def _means_of_configurations(runs: Sequence[Run]) -> dict[str, Estimate]:
    """Return the accuracy after the last step, averaged over configurations and held-out domains, by label."""
    values: dict[str, dict[int, list[float]]] = {label: {} for label in labels_of(runs)}
    for number in {run.hparams_seed for run in runs}:
        for choice in TEST_DOMAIN([run for run in runs if run.hparams_seed == number]):  # of one: its last step
            if choice.accuracy is not None:
                values[choice.label].setdefault(choice.trial_seed, []).append(100 * choice.accuracy)
    return {label: estimate([fmean(found) for found in by_seed.values()]) for label, by_seed in values.items()}


def published_table(runs: Sequence[Run], selection: Selection) -> Table:
    """Return our accuracies beside the published ones, for the rows that a publication has: means over domains.

    Args:
        runs: Runs of the complete rows of one sweep.
        selection: Model selection of all columns. A publication without results under it has no column.
    """
    theirs: dict[str, dict[str, Estimate]] = {}
    for name, title in PUBLICATIONS.items():
        for comparison in compare_by_label(runs, find_publication(name), [selection]):
            theirs[title] = {
                pair.algorithm: Estimate(pair.theirs.mean, pair.theirs.stderr)
                for pair in comparison.pairs
                if (pair.dataset, pair.domain) == (runs[0].dataset, AVERAGE)
            }
    ours = first_cells(averages_table(runs, selection))
    known = [label for label in ours if any(label in found for found in theirs.values())]
    return Table(
        title=f"{runs[0].dataset}: our results and published ones",
        columns=tuple(Column(title, unit="%", missing=NOTHING) for title in ("ours", *theirs)),
        rows=tuple(
            Row((ours[label], *(found.get(label, Estimate()) for found in theirs.values())), label) for label in known
        ),
        selection=selection,
        row_key="algorithm",
    )


def _gain_columns(key: str) -> tuple[Column, Column]:
    number = gain_column(key, "difference to ERM", csv_prefix=f"{key}_")
    return number, Column(f"{key}_interval", "95 %, corrected", kind="text")


def _gain_cells(gain: Estimate, compared: int, label: str) -> tuple[Estimate, str, float]:
    """Return the difference, its corrected interval and the smallest detectable effect."""
    span = tested_interval(gain, compared)
    if label == ERM.name or span is None:
        return Estimate() if label == ERM.name else gain, NOTHING, float("nan")
    low, high = span
    differs = "" if low <= 0 <= high else " ≠"
    return gain, f"{low:+.1f} … {high:+.1f}{differs}", detectable(gain, compared)


def tested_interval(gain: Estimate, compared: int) -> tuple[float, float] | None:
    """Return the corrected 95 % interval of a difference to ERM; None if it has too few seeds."""
    return None if gain.stderr is None or gain.n < LEAST_SEEDS else interval(gain, compared)


def run_costs(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Return the median time of a run in seconds and its memory in GB, by label; NaN if it was not recorded.

    Runs that trained as one batch have the same times to the last digit. Each has an equal share.
    """
    times = {run.id: tuple(finite(record.get("seconds_per_step")) for record in run.records[1:]) for run in runs}
    sharing = Counter(times.values())
    costs = {}
    for label in labels_of(runs):
        own = [run for run in runs if run.label == label]
        seconds = [median(times[run.id]) * run.trial["steps"] / sharing[times[run.id]] for run in own if times[run.id]]
        memory = [found for run in own if run.records and (found := finite(run.records[-1].get("memory_gb"))) > 0]
        costs[label] = median(seconds or [float("nan")]), max(memory, default=float("nan"))
    return costs


def domain_table(runs: Sequence[Run], selection: Selection) -> Table:
    """Return the accuracy on every held-out domain, without their average."""
    table = dataset_table(runs, runs[0].dataset, selection)
    return replace(
        table,
        columns=table.columns[:-1],
        rows=tuple(replace(row, cells=row.cells[:-1]) for row in table.rows),
    )


def seed_table(runs: Sequence[Run]) -> Table:
    """Return how much the accuracy varies between seeds, under training-domain validation."""
    values: dict[str, dict[int, dict[int, float]]] = {label: {} for label in labels_of(runs)}
    for choice in TRAINING_DOMAIN(runs):
        if choice.accuracy is not None:
            values[choice.label].setdefault(choice.domain, {})[choice.trial_seed] = 100 * choice.accuracy
    rows = []
    for label, by_domain in values.items():
        seeds = list(next(iter(by_domain.values())))
        means = [fmean(found[seed] for found in by_domain.values()) for seed in seeds]
        widest = max(by_domain, key=lambda domain: stdev(by_domain[domain].values()))
        found = by_domain[widest].values()
        span = f"{min(found):.1f} … {max(found):.1f}"
        rows.append(Row((stdev(means), stdev(found), runs[0].domains[widest], span, len(seeds)), label))
    return Table(
        title=f"{runs[0].dataset}: variance between seeds",
        columns=(
            Column("sd", "SD of the mean", kind="number", digits=".2f"),
            Column("domain_sd", "largest SD", kind="number", digits=".2f"),
            Column("domain", "on domain", kind="text"),
            Column("range", "range there", kind="text"),
            Column("n", kind="number"),
        ),
        rows=tuple(rows),
        selection=TRAINING_DOMAIN,
        footnotes=SEED_NOTES,
        row_key="algorithm",
    )


def count_seeds(runs: Sequence[Run]) -> str:
    """Return the number of seeds of the rows: "5 seeds", or "3 to 5 seeds"."""
    counts = sorted({len({run.trial_seed for run in runs if run.label == label}) for label in labels_of(runs)})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"
