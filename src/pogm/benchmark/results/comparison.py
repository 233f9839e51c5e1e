"""Our results beside published ones: for every number that both have, ours, theirs and the difference."""

import csv
import io
import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from pogm.benchmark.domainbed import SUFFIX
from pogm.benchmark.results.published import ALL_DATASETS, Result, Source
from pogm.benchmark.results.records import Run, finite, printable
from pogm.benchmark.results.selection import SELECTIONS, Selection
from pogm.benchmark.results.tables import AVERAGE, Cell, Table, averages_table, dataset_table, latex_text

HEAD = ("Dataset", "Algorithm", "Held out", "Ours", "Published", "Difference")
Place = tuple[str, int | str]  # a dataset, and the number of a domain in it or Avg


@dataclass(frozen=True)
class Pair:
    """One number of ours and the published one."""

    dataset: str
    algorithm: str  # as we call it
    domain: str  # as we call it
    ours: Cell
    theirs: Result

    @property
    def difference(self) -> float:
        """Ours less theirs, in percentage points."""
        assert self.ours.mean is not None
        return self.ours.mean - self.theirs.mean

    def shown(self) -> tuple[str, ...]:
        """As text, in the order of `HEAD`."""
        theirs = Cell(self.theirs.mean, self.theirs.stderr)
        ours = f"{self.ours}{' †' if self.ours.incomplete else ''}"
        difference = round(self.difference, 1) + 0.0  # which makes −0.0 a plain 0
        return self.dataset, self.algorithm, self.domain, ours, str(theirs), f"{difference:+.1f}"


@dataclass(frozen=True)
class Comparison:
    """What we and a publication have in common under one selection."""

    source: Source
    selection: Selection
    pairs: tuple[Pair, ...]

    @property
    def title(self) -> str:
        return f"Beside {self.source.title}: {self.selection.name}"

    @property
    def footnotes(self) -> tuple[str, ...]:
        """How to read it, and what to know about those published numbers that it shows."""
        shown = {name for pair in self.pairs for name in (pair.theirs.algorithm, pair.dataset)}
        notes = [f"Both under the selection {self.selection.name}; ± is the standard error, published ones as printed."]
        if any(pair.ours.incomplete for pair in self.pairs):
            notes.append("† Incomplete: a trial is missing from this mean.")
        return (*notes, *(note.text for note in self.source.notes if not note.about or note.about & shown))

    def text(self) -> str:
        """Plain aligned text, a line between datasets."""
        shown = [tuple(map(printable, pair.shown())) for pair in self.pairs]
        widths = [max(map(len, column)) for column in zip(HEAD, *shown, strict=True)]
        rule = "─" * (sum(widths) + 2 * len(widths) - 2)
        lines = [printable(self.title), rule, _aligned(HEAD, widths), rule]
        for _, rows in groupby(shown, key=lambda row: row[0]):
            lines += [*(_aligned(row, widths) for row in rows), rule]
        return "\n".join([*lines, *(textwrap.fill(note, max(72, len(rule))) for note in self.footnotes)]) + "\n"

    def json(self) -> str:
        """The pairs with all their digits."""
        selection = {"name": self.selection.name, "title": self.selection.title, "rule": self.selection.rule}
        rows: list[dict[str, Any]] = [
            {
                "dataset": pair.dataset,
                "algorithm": pair.algorithm,
                "domain": pair.domain,
                "ours": asdict(pair.ours),
                "published": {"mean": pair.theirs.mean, "stderr": pair.theirs.stderr},
                "difference": pair.difference,
            }
            for pair in self.pairs
        ]
        content = {"title": self.title, "against": self.source.name, "selection": selection, "rows": rows}
        return json.dumps(content | {"footnotes": self.footnotes}, indent=1)

    def latex(self) -> str:
        """A tabular for the booktabs package."""
        lines = [r"\begin{tabular}{lllrrr}", r"\toprule", " & ".join(HEAD) + r" \\", r"\midrule"]
        lines += [" & ".join(map(latex_text, pair.shown())) + r" \\" for pair in self.pairs]
        notes = [f"% {printable(note)}" for note in (self.title, *self.footnotes)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    names, numbers = list(zip(row, widths, strict=True))[:3], list(zip(row, widths, strict=True))[3:]
    return "  ".join([f"{name:<{width}}" for name, width in names] + [f"{text:>{width}}" for text, width in numbers])


def comparisons_csv(comparisons: Iterable[Comparison]) -> str:
    """One line per pair: the columns of our tables, then the published number and the difference."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ours = ["dataset", "algorithm", "selection", "domain", "mean", "stderr", "n"]
    writer.writerow([*ours, "against", "published_mean", "published_stderr", "difference"])
    for comparison in comparisons:
        for pair in comparison.pairs:
            mine = ["" if value is None else f"{value:.4f}" for value in (pair.ours.mean, pair.ours.stderr)]
            theirs = ["" if value is None else value for value in (pair.theirs.mean, pair.theirs.stderr)]
            place = [pair.dataset, pair.algorithm, comparison.selection.name, pair.domain]
            writer.writerow([*place, *mine, pair.ours.n, comparison.source.name, *theirs, f"{pair.difference:.4f}"])
    return out.getvalue()


def compare(runs: Iterable[Run], source: Source, selections: Iterable[Selection] = SELECTIONS) -> list[Comparison]:
    """Ours beside theirs, selection by selection and never across; those that have something in common."""
    runs = list(runs)
    runs += [run for name in source.settings for run in _split(runs, name)]
    found = [Comparison(source, selection, tuple(_pairs(runs, source, selection))) for selection in selections]
    return [comparison for comparison in found if comparison.pairs]


def _split(runs: Iterable[Run], setting: str) -> list[Run]:
    """Runs relabelled by the value of a setting that was searched; none where all have the same."""
    settings = ((run, run.trial.get("algorithm")) for run in runs)
    values = [(run, finite(of.get(setting))) for run, of in settings if isinstance(of, dict)]
    values = [(run, value) for run, value in values if not math.isnan(value)]
    spread = Counter(label for label, _ in {(run.label, value) for run, value in values})
    return [replace(run, label=f"{run.label}, {setting} = {value:g}") for run, value in values if spread[run.label] > 1]


def _pairs(runs: Sequence[Run], source: Source, selection: Selection) -> Iterator[Pair]:
    results = [result for result in source.results if result.selection == selection.name]
    published = {(place, _folded(result.algorithm)): result for place, result in _placed(results)}
    datasets = list(dict.fromkeys(result.dataset for result in results))
    domains = {name: len({r.domain for r in results if r.dataset == name} - {AVERAGE}) for name in datasets}
    for place, domain, label, cell in _ours(runs, selection, domains):
        theirs = published.get((place, _folded(label)))
        if theirs is not None and cell.mean is not None:
            yield Pair(place[0], label, domain, cell, theirs)


def _placed(results: Iterable[Result]) -> Iterator[tuple[Place, Result]]:
    """Domains by number: a publication and we need not call them the same, but all follow the datasets' order."""
    numbers: dict[str, dict[str, int]] = {}
    for result in results:
        of_dataset = numbers.setdefault(result.dataset, {})
        if result.domain == AVERAGE:
            yield (result.dataset, AVERAGE), result
        else:
            yield (result.dataset, of_dataset.setdefault(result.domain, len(of_dataset))), result


def _ours(runs: Sequence[Run], selection: Selection, domains: dict[str, int]) -> Iterator[tuple[Place, str, str, Cell]]:
    """Our cells for the datasets of a publication, with its number of domains; averages only where none is missing."""
    datasets = [name for name in dict.fromkeys(run.dataset for run in runs) if name in domains]
    here = [run for run in runs if run.dataset in datasets]
    averages = averages_table(here, selection)
    whole: dict[str, int] = {}
    for column, dataset in enumerate(datasets):
        table = dataset_table(here, dataset, selection)
        for label, cells in zip(table.rows, table.cells, strict=True):
            if len(cells) - 1 == domains[dataset]:  # Table 1 has no domains, only averages
                for number, cell in enumerate(cells[:-1]):
                    yield (dataset, number), table.columns[number], label, cell
            if cells[-1].mean is not None:
                whole[label] = whole.get(label, 0) + 1
                yield (dataset, AVERAGE), AVERAGE, label, _row(averages, label)[column]
    for label, count in whole.items():
        if count == len(domains.keys() - {ALL_DATASETS}):
            yield (ALL_DATASETS, AVERAGE), AVERAGE, label, _row(averages, label)[-1]


def _row(table: Table, label: str) -> tuple[Cell, ...]:
    return table.cells[table.rows.index(label)]


def _folded(label: str) -> str:
    """One spelling for AND-mask and ANDMask; and what we call ERM + Mixup is what others call Mixup."""
    text = label.removesuffix(SUFFIX).casefold().removeprefix("erm + ")
    return "".join(char for char in text if char.isalnum() or char in "+.").replace("cag1", "pogm")
