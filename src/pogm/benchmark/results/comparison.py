"""Comparison of our results with published ones: for every number that both have, ours, theirs and the difference."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pogm.benchmark.domainbed import SUFFIX
from pogm.benchmark.results.accuracy_tables import ALL_DATASETS, AVERAGE, averages_table, dataset_table
from pogm.benchmark.results.published import Result, Source
from pogm.benchmark.results.record_file import finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import SELECTIONS, Selection
from pogm.benchmark.results.table import INCOMPLETE, Column, Estimate, Row, Table, Tabular
from pogm.benchmark.results.table_formats import tables_csv

COLUMNS = (
    Column("dataset", "Dataset", kind="text"),
    Column("algorithm", "Algorithm", kind="text"),
    Column("selection", kind="text", csv_only=True),
    Column("domain", "Held out", kind="text"),
    Column("ours", "Ours", unit="%", per_trial=True),
    Column("against", kind="text", csv_only=True),
    Column("published", "Published", unit="%", csv_digits="", fields=("mean", "stderr"), csv_prefix="published_"),
    Column("difference", "Difference", kind="number", unit="percentage points", digits="+.1f"),
)
DomainKey = tuple[str, int | str]  # a dataset, and the index of a domain in it or `AVERAGE`


@dataclass(frozen=True)
class Pair:
    """One number of ours and the published one."""

    dataset: str
    algorithm: str  # our name
    domain: str  # our name
    ours: Estimate
    theirs: Result

    @property
    def difference(self) -> float:
        """Ours minus theirs, in percentage points."""
        assert self.ours.mean is not None
        return self.ours.mean - self.theirs.mean


@dataclass(frozen=True)
class Comparison(Tabular):
    """The numbers that our runs and a publication have in common under one selection."""

    source: Source
    selection: Selection
    pairs: tuple[Pair, ...]

    @property
    def title(self) -> str:
        return f"Compared with {self.source.title}: {self.selection.name}"

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Notes on ± and n, and the notes of the publication on the numbers that are shown."""
        shown = {name for pair in self.pairs for name in (pair.theirs.algorithm, pair.dataset)}
        notes = [
            f"Both under the selection {self.selection.name}; ± is the standard error, published ones as printed.",
            *self._trials(),
        ]
        if any(pair.ours.incomplete for pair in self.pairs):
            notes.append(f"{INCOMPLETE} Incomplete: a trial is missing from this mean.")
        return (*notes, *(note.text for note in self.source.notes if not note.about or note.about & shown))

    def _trials(self) -> list[str]:
        counts = {pair.ours.n for pair in self.pairs}
        if not counts:
            return []
        trials = " to ".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
        single = "; a mean of one trial has no standard error" if 1 in counts else ""
        return [f"Ours: n = {trials} trial{'s' * (trials != '1')}{single}."]

    def table(self) -> Table:
        """Return the pairs as a table, grouped by dataset."""
        return Table(
            title=self.title,
            columns=COLUMNS,
            rows=tuple(self._row(pair) for pair in self.pairs),
            selection=self.selection,
            footnotes=self.footnotes,
            properties={"against": self.source.name},
        )

    def _row(self, pair: Pair) -> Row:
        published = Estimate(pair.theirs.mean, pair.theirs.stderr)
        names = pair.dataset, pair.algorithm, self.selection.name, pair.domain
        return Row((*names, pair.ours, self.source.name, published, pair.difference), group=pair.dataset)


def comparisons_csv(comparisons: Iterable[Comparison]) -> str:
    """Return CSV with one line per pair; without a pair, only its header."""
    tables = [comparison.table() for comparison in comparisons]
    return tables_csv(tables or [Table("", COLUMNS, ())])


def compare(runs: Iterable[Run], source: Source, selections: Iterable[Selection] = SELECTIONS) -> list[Comparison]:
    """Compare runs with a publication under each selection; comparisons without a common number are left out.

    Args:
        runs: Our runs.
        source: The publication, as from `published`.
        selections: Model selections. Numbers are compared under the same selection only.
    """
    runs = list(runs)
    runs += [run for name in source.settings for run in _split(runs, name)]
    found = [Comparison(source, selection, tuple(_pairs(runs, source, selection))) for selection in selections]
    return [comparison for comparison in found if comparison.pairs]


def _split(runs: Iterable[Run], setting: str) -> list[Run]:
    """Label runs by the value of a hyperparameter; only those of algorithms with several values."""
    settings = ((run, run.trial.get("algorithm")) for run in runs)
    values = [(run, finite(of.get(setting))) for run, of in settings if isinstance(of, dict)]
    values = [(run, value) for run, value in values if not math.isnan(value)]
    counts = Counter(label for label, _ in {(run.label, value) for run, value in values})
    return [replace(run, label=f"{run.label}, {setting} = {value:g}") for run, value in values if counts[run.label] > 1]


def _pairs(runs: Sequence[Run], source: Source, selection: Selection) -> Iterator[Pair]:
    results = [result for result in source.results if result.selection == selection.name]
    published = {(key, _normalized(result.algorithm)): result for key, result in _keyed(results)}
    datasets = list(dict.fromkeys(result.dataset for result in results))
    domains = {name: len({r.domain for r in results if r.dataset == name} - {AVERAGE}) for name in datasets}
    for key, domain, label, cell in _our_cells(runs, selection, domains):
        theirs = published.get((key, _normalized(label)))
        if theirs is not None and cell.mean is not None:
            yield Pair(key[0], label, domain, cell, theirs)


def _keyed(results: Iterable[Result]) -> Iterator[tuple[DomainKey, Result]]:
    """Number the domains: names of domains differ between publications, but their order does not."""
    indices: dict[str, dict[str, int]] = {}
    for result in results:
        of_dataset = indices.setdefault(result.dataset, {})
        if result.domain == AVERAGE:
            yield (result.dataset, AVERAGE), result
        else:
            yield (result.dataset, of_dataset.setdefault(result.domain, len(of_dataset))), result


def _our_cells(
    runs: Sequence[Run], selection: Selection, domains: dict[str, int]
) -> Iterator[tuple[DomainKey, str, str, Estimate]]:
    """Yield our estimates on the datasets of a publication: key, name of the domain, label, estimate.

    A domain is compared only if the publication has as many domains. An average is compared only if it is complete.
    """
    datasets = [name for name in dict.fromkeys(run.dataset for run in runs) if name in domains]
    common = [run for run in runs if run.dataset in datasets]
    averages = {row.key: row.estimates for row in averages_table(common, selection).rows}
    complete: Counter[str] = Counter()
    for j, dataset in enumerate(datasets):
        table = dataset_table(common, dataset, selection)
        for row in table.rows:
            *cells, average = row.estimates
            if len(cells) == domains[dataset]:  # Table 1 has averages only
                for index, cell in enumerate(cells):
                    yield (dataset, index), table.columns[index].key, row.key, cell
            if average.mean is not None:
                complete[row.key] += 1
                yield (dataset, AVERAGE), AVERAGE, row.key, averages[row.key][j]
    for label, count in complete.items():
        if count == len(domains.keys() - {ALL_DATASETS}):
            yield (ALL_DATASETS, AVERAGE), AVERAGE, label, averages[label][-1]


def _normalized(label: str) -> str:
    """Give different spellings of an algorithm the same name: AND-mask and ANDMask, ERM + Mixup and Mixup."""
    text = label.removesuffix(SUFFIX).casefold().removeprefix("erm + ")
    return "".join(char for char in text if char.isalnum() or char in "+.").replace("cag1", "pogm")
