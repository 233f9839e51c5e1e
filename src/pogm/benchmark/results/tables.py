"""Result tables: mean ± standard error over trials, in percent, for one way of selecting models."""

import csv
import io
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from pogm._system.errors import UsageError
from pogm.benchmark.results.records import Run, printable
from pogm.benchmark.results.selection import Choice, Selection
from pogm.benchmark.results.statistics import mean_of

AVERAGE = "Avg"


@dataclass(frozen=True)
class Cell:
    """A mean in percent with its standard error over n trials, or the reason there is none."""

    mean: float | None = None
    stderr: float | None = None  # None too where an average of averages has no error of its own
    n: int = 0
    reason: str = ""
    incomplete: bool = False  # some test domain or trial is missing from the mean

    @property
    def printed(self) -> float | None:
        """The mean as readers see it, which is what bold type and ranks go by."""
        return None if self.mean is None else float(f"{self.mean:.1f}")

    def __str__(self) -> str:
        if self.mean is None:
            return f"X ({self.reason})" if self.reason else "X"
        return f"{self.mean:.1f}" if self.stderr is None else f"{self.mean:.1f} ± {self.stderr:.1f}"


def mean_and_error(accuracies: Sequence[float]) -> Cell:
    """Mean and standard error in percent."""
    return Cell(*mean_of(100 * accuracy for accuracy in accuracies))


@dataclass(frozen=True)
class Table:
    """Algorithms against domains (or datasets), under one selection, which it names beneath itself."""

    title: str
    selection: Selection
    rows: tuple[str, ...]
    columns: tuple[str, ...]  # the last is the average
    keys: tuple[tuple[str, str], ...]  # dataset and domain of every column, for csv
    cells: tuple[tuple[Cell, ...], ...]
    footnotes: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        return max((cell.n for row in self.cells for cell in row[:-1]), default=0)

    @property
    def empty(self) -> bool:
        return all(cell.mean is None for row in self.cells for cell in row)

    def best(self, column: int) -> frozenset[int]:
        """The rows that share the best printed mean; none where there is nothing to be better than."""
        printed = {i: row[column].printed for i, row in enumerate(self.cells)}
        known = {i: value for i, value in printed.items() if value is not None}
        if len(self.rows) < 2 or not known:
            return frozenset()
        return frozenset(i for i, value in known.items() if value == max(known.values()))

    def marks(self, cell: Cell) -> str:
        """What a reader must know about a cell beside its number."""
        fewer = f" (n={cell.n})" if cell.stderr is not None and cell.n < self.trials else ""
        return fewer + (" †" if cell.incomplete else "")

    def text(self) -> str:
        """Plain aligned text, for a terminal or a log."""
        names = [printable(row) for row in self.rows]
        columns = [[" " * max(map(len, ["", *names])), *(name.ljust(max(map(len, names))) for name in names)]]
        for j, title in enumerate(map(printable, self.columns)):
            column = [row[j] for row in self.cells]
            numbers = [str(cell) for cell in column]
            marks = [("*" if i in self.best(j) else " ") + self.marks(cell) for i, cell in enumerate(column)]
            width, tail = max(map(len, [title, *numbers])), max(map(len, ["", *marks]))
            shown = [f"{number:>{width}}{mark:<{tail}}" for number, mark in zip(numbers, marks, strict=True)]
            columns.append([f"{title:>{width}}{'':<{tail}}", *shown])
        head, *body = ("  ".join(line).rstrip() for line in zip(*columns, strict=True))
        rule = "─" * max(map(len, [head, *body]))
        lines = [printable(self.title), rule, head, rule, *body, rule]
        notes = [f"{self.selection.title}. {self.selection.rule}", *self._notes()]
        return "\n".join([*lines, *(textwrap.fill(note, max(72, len(rule))) for note in notes)]) + "\n"

    def _notes(self) -> list[str]:
        starred = any(self.best(j) for j in range(len(self.columns)))
        return [*(["* Best of its column."] if starred else []), *self.footnotes]

    def csv(self, *, header: bool = True) -> str:
        """One line per cell; a missing one has no mean and n = 0."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(["dataset", "algorithm", "selection", "domain", "mean", "stderr", "n"])
        for row, cells in zip(self.rows, self.cells, strict=True):
            for (dataset, domain), cell in zip(self.keys, cells, strict=True):
                numbers = ("" if value is None else f"{value:.4f}" for value in (cell.mean, cell.stderr))
                writer.writerow([dataset, row, self.selection.name, domain, *numbers, cell.n])
        return out.getvalue()

    def json(self) -> str:
        selection = {"name": self.selection.name, "title": self.selection.title, "rule": self.selection.rule}
        return json.dumps(
            {
                "title": self.title,
                "selection": selection,
                "columns": self.columns,
                "rows": {
                    row: dict(zip(self.columns, map(asdict, cells), strict=True))
                    for row, cells in zip(self.rows, self.cells, strict=True)
                },
                "footnotes": self.footnotes,
            },
            indent=1,
        )

    def latex(self) -> str:
        """A tabular for the booktabs package, with the best of every column in bold."""
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule"]
        lines += [" & ".join(["Algorithm", *map(latex_text, self.columns)]) + r" \\", r"\midrule"]
        for i, (row, cells) in enumerate(zip(self.rows, self.cells, strict=True)):
            shown = []
            for j, cell in enumerate(cells):
                number = rf"\textbf{{{latex_text(str(cell))}}}" if i in self.best(j) else latex_text(str(cell))
                shown.append(number + latex_text(self.marks(cell)))
            lines.append(" & ".join([latex_text(row), *shown]) + r" \\")
        notes = [f"% {printable(note)}" for note in (self.selection.title, self.selection.rule, *self.footnotes)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def tables_csv(tables: Iterable[Table]) -> str:
    """Several tables as one csv, which is itself a table: the early-stopped oracle stays alone."""
    tables = list(tables)
    if len({table.selection.early_stopped_oracle for table in tables}) > 1:
        raise UsageError(
            "Expected tables that can be compared; found the early-stopped oracle beside other selections. "
            "Write it to a file of its own."
        )
    return "".join(table.csv(header=i == 0) for i, table in enumerate(tables))


def dataset_table(runs: Iterable[Run], dataset: str, selection: Selection) -> Table:
    """One dataset: algorithms against held-out domains."""
    runs = [run for run in runs if run.dataset == dataset]
    domains, rows, choices = domains_of(runs), labels_of(runs), selection(runs)
    seeds = {choice.trial_seed for choice in choices if choice.accuracy is not None}
    cells = []
    for label in rows:
        row = [_cell(choices, label, i, len(seeds)) for i in range(len(domains))]
        cells.append((*row, _average(row)))
    return Table(
        title=dataset,
        selection=selection,
        rows=rows,
        columns=(*domains, AVERAGE),
        keys=tuple((dataset, domain) for domain in (*domains, AVERAGE)),
        cells=tuple(cells),
        footnotes=_footnotes(cells, choices),
    )


def averages_table(runs: Iterable[Run], selection: Selection) -> Table:
    """All datasets: algorithms against datasets, every cell the mean over held-out domains."""
    runs = list(runs)
    datasets = tuple(dict.fromkeys(run.dataset for run in runs))
    rows, choices = labels_of(runs), selection(runs)
    domains = {name: len(domains_of([run for run in runs if run.dataset == name])) for name in datasets}
    cells = []
    for label in rows:
        row = [_dataset_cell(choices, label, name, domains[name]) for name in datasets]
        cells.append((*row, _average(row)))
    return Table(
        title="All datasets",
        selection=selection,
        rows=rows,
        columns=(*datasets, AVERAGE),
        keys=(*((name, AVERAGE) for name in datasets), ("Averages", AVERAGE)),
        cells=tuple(cells),
        footnotes=_footnotes(cells, choices),
    )


def domains_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """The domain names of one dataset, on which its runs must agree."""
    found = list(dict.fromkeys(run.domains for run in runs))
    if len(found) != 1:
        raise UsageError(
            f"Expected runs that agree on the domains of a dataset; found {found}. Report them one by one."
        )
    return found[0]


def labels_of(runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.label for run in runs))


def _cell(choices: Iterable[Choice], label: str, domain: int, trials: int) -> Cell:
    here = [choice for choice in choices if (choice.label, choice.domain) == (label, domain)]
    found = [choice.accuracy for choice in here if choice.accuracy is not None]
    if not found:
        return Cell(reason="; ".join(dict.fromkeys(choice.reason for choice in here)) or "not run")
    cell = mean_and_error(found)
    return Cell(cell.mean, cell.stderr, cell.n, incomplete=len(found) < trials)


def _dataset_cell(choices: Iterable[Choice], label: str, dataset: str, domains: int) -> Cell:
    here = [choice for choice in choices if (choice.label, choice.dataset) == (label, dataset)]
    by_trial: dict[int, list[float]] = {}
    for choice in here:
        if choice.accuracy is not None:
            by_trial.setdefault(choice.trial_seed, []).append(choice.accuracy)
    if not by_trial:
        return Cell(reason="; ".join(dict.fromkeys(choice.reason for choice in here)) or "not run")
    cell = mean_and_error([fmean(accuracies) for accuracies in by_trial.values()])
    incomplete = any(len(accuracies) < domains for accuracies in by_trial.values())
    return Cell(cell.mean, cell.stderr, cell.n, incomplete=incomplete)


def _average(cells: Sequence[Cell]) -> Cell:
    """The plain mean of a row, which has no error; missing as soon as one cell is."""
    means = [cell.mean for cell in cells if cell.mean is not None]
    if len(means) < len(cells):
        return Cell()
    return Cell(fmean(means), None, min(c.n for c in cells), incomplete=any(c.incomplete for c in cells))


def _footnotes(cells: Sequence[Sequence[Cell]], choices: Iterable[Choice]) -> tuple[str, ...]:
    numbers = [cell for row in cells for cell in row[:-1] if cell.mean is not None]
    notes = []
    if numbers:
        trials = max(cell.n for cell in numbers)
        spread = "± is the standard error" if trials > 1 else "one trial says nothing of the spread"
        unless = ", unless a cell says otherwise" if any(cell.n < trials for cell in numbers) else ""
        notes.append(f"n = {trials} trial{'s' if trials > 1 else ''}{unless}; {spread}.")
    if any(cell.incomplete for row in cells for cell in row):
        notes.append("† Incomplete: a trial or a test domain is missing from this mean.")
    missing = Counter(reason for choice in choices for reason in choice.left_out if reason in _LOST)
    if missing:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
        notes.append(f"Left out: {counts}.")
    return tuple(notes)


_LOST = {"failed", "unfinished", "diverged", "ambiguous: settings differ", "no records"}


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{char: rf"\{char}" for char in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "†": r"$\dagger$",
        "−": "$-$",
        "°": r"$^\circ$",
    }
)


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return printable(text).translate(_LATEX)
