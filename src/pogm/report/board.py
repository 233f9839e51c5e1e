"""The board: progress, failures, learning curves and result tables of a folder of runs."""

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pogm._system.errors import PogmError
from pogm.benchmark.progress.estimate import duration
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table, labels_of
from pogm.benchmark.results.finding import find_main
from pogm.benchmark.results.record_file import Record, mean_score
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import SELECTIONS, Choice
from pogm.benchmark.runs.state import STATES
from pogm.report.figure import Figure, Line, Point
from pogm.report.forecast import seconds_left
from pogm.report.page import Exhibit, Part, Section, listing, paragraph, render, sentence
from pogm.report.runs import averages_exhibits, figures_of, finding_figure, fold_figures, fold_secondary
from pogm.report.selected_models import selected_models
from pogm.report.series import ACCURACY, comparable, small_charts
from pogm.report.watch import FolderState, RunState, Watcher

ALL = ""  # all datasets; no dataset has this name
LAST_LINES = 6  # lines of an error message that are shown
MAX_FAILURES = 50  # largest number of failures that are shown
MAX_LINES = 24  # largest number of running runs in charts
VALIDATION = "Accuracy of each run on the validation samples of its training domains."
UNFINISHED_MEANS = (
    "Lines are means over trial seeds of runs with the first configuration of an algorithm, finished or not; bands are "
    "± one standard error."
)


class Board:
    """The page of a folder. The page is rendered again if a file changed, and a table if another run is done."""

    def __init__(self, folder: Path) -> None:
        self.watcher, self.title = Watcher(folder), f"Board of {folder}"
        self.rendered: tuple[FolderState | None, str] = (None, "")  # what the page shows, and the page
        self.tables: dict[str, tuple[list[Run], tuple[Exhibit, ...]]] = {}  # by dataset: finished runs, their tables
        self.choices: dict[str, list[list[Choice]]] = {}  # by dataset: what each selection chooses
        self.lead: tuple[list[str], int, list[Exhibit]] | None = None  # ids of finished runs, number of runs, finding
        self.curves: dict[str, tuple[object, list[Run], tuple[Figure, ...]]] = {}  # by dataset: names, runs, curves

    def page(self) -> str:
        """Return the page as HTML, with every name escaped."""
        folder = self.watcher.read()
        if not _is_same(folder, self.rendered[0]):
            sections = self.sections(folder)
            self.rendered = folder, render(self.title, sections, lead=self._lead(folder), live=True)
        return self.rendered[1]

    def sections(self, folder: FolderState) -> list[Section]:
        """Return all sections; those that change most come first."""
        runs = [one.run for one in folder.started]
        datasets = list(dict.fromkeys(run.dataset for run in runs))
        by_dataset = [
            Section(name, (*self._finished(name, runs), *fold_figures(self._learning_curves(name, runs), 1)))
            for name in datasets
        ]
        return [
            Section("Progress", (*_progress(folder), *map(paragraph, folder.problems))),
            *_running(folder.started),
            *_failures(folder.started),
            *([Section("All datasets", self._finished(ALL, runs))] if len(datasets) > 1 else []),
            *by_dataset,
        ]

    def _lead(self, folder: FolderState) -> list[Exhibit]:
        """Return the main finding and its figure, as in a report. `sections` has chosen the runs before."""
        runs = [one.run for one in folder.started]
        if not runs:
            return []
        done = [run.id for run in runs if run.done]
        if self.lead is None or self.lead[:2] != (done, len(runs) + len(folder.waiting)):
            try:
                found = find_main(runs, waiting=len(folder.waiting))
                shown: list[Exhibit] = [sentence(found.sentence), *finding_figure(found, labels_of(runs))]
            except PogmError:  # the tables show this error
                shown = []
            self.lead = done, len(runs) + len(folder.waiting), shown
        return self.lead[2]

    def _finished(self, dataset: str, runs: Sequence[Run]) -> tuple[Exhibit, ...]:
        """Return the result tables of finished runs of a dataset; `ALL` comes after the datasets."""
        done = [run for run in runs if run.done and dataset in (ALL, run.dataset)]
        if dataset not in self.tables or not _are_same(self.tables[dataset][0], done):
            self.tables[dataset] = done, self._tables(dataset, done)
        return self.tables[dataset][1]

    def _tables(self, dataset: str, done: Sequence[Run]) -> tuple[Exhibit, ...]:
        if not done:
            return (paragraph("No run is done yet."),)
        if dataset == ALL:
            names = dict.fromkeys(run.dataset for run in done)
            chosen = [[one for name in names for one in self.choices[name][i]] for i in range(len(SELECTIONS))]
        else:
            chosen = self.choices[dataset] = [selection(done) for selection in SELECTIONS]
        pairs = zip(SELECTIONS, chosen, strict=True)
        try:
            if dataset == ALL:
                return averages_exhibits(averages_table(done, selection, found) for selection, found in pairs)
            tables = [dataset_table(done, dataset, selection, found) for selection, found in pairs]
            shown = [exhibit for table in tables if not table.empty for exhibit in fold_secondary(table)]
            return (*shown, *selected_models(done, dataset))
        except PogmError as error:  # such as runs with different domains of a dataset
            return (paragraph(str(error)),)

    def _learning_curves(self, dataset: str, runs: Sequence[Run]) -> tuple[Figure, ...]:
        """Return learning curves of all runs, also of unfinished ones, which reports leave out."""
        groups = comparable(runs, dataset, only_done=False)
        used = [run for _, _, chosen in groups for run in chosen]
        names = [label for _, label, _ in groups], {run.domains for run in runs if run.dataset == dataset}
        before = self.curves.get(dataset)
        if before is None or before[0] != names or not _are_same(before[1], used):
            try:
                figures = figures_of(runs, dataset, groups)
            except PogmError:  # the tables show this error
                figures = []
            notes = (replace(figure, notes=(UNFINISHED_MEANS, *figure.notes[1:])) for figure in figures)
            self.curves[dataset] = names, used, tuple(notes)
        return self.curves[dataset][2]


def _is_same(folder: FolderState, before: FolderState | None) -> bool:
    """Return True if nothing changed that the board shows. A run that did not change is the same object."""
    if before is None or folder.problems != before.problems or len(folder.waiting) != len(before.waiting):
        return False
    return _are_same(folder.started, before.started)


def _are_same(found: Sequence[object], before: Sequence[object]) -> bool:
    return len(found) == len(before) and all(map(operator.is_, found, before))


def _progress(folder: FolderState) -> Iterator[Part]:
    kinds = folder.count_states()
    counts = sum(kinds.values(), Counter[str]())
    values = {"summary": _summary(folder, counts), "total": counts.total(), "counts": {s: counts[s] for s in STATES}}
    yield Part("progress", values)
    rows = [(*kind, *(found[state] for state in STATES)) for kind, found in kinds.items()]
    yield listing(("Dataset", "Algorithm", *map(str.capitalize, STATES)), rows, "By dataset and algorithm")


def _summary(folder: FolderState, counts: Counter[str]) -> str:
    total, failed = counts.total(), counts["failed"]
    if not total:
        return "There are no runs yet."
    if counts["done"] + failed == total:
        started = "" if folder.has_plan else " that have started"
        return f"All runs{started} are done{f', except {failed} that failed' if failed else ''}."
    share = sum(one.share for one in folder.started if one.state != "failed") / (total - failed)
    done = f"{share:.0%} done" if folder.has_plan else f"{share:.0%} of the started runs is done"
    if not counts["running"]:
        return f"{done}. Nothing is running."
    left = seconds_left(folder)
    return f"{done}, {'time left not known yet' if left is None else f'about {duration(left)} left'}."


def _running(started: Sequence[RunState]) -> list[Section]:
    running = [one for one in started if one.state == "running"]
    head = ("Dataset", "Algorithm", "Held out", "Configuration", "Trial", "Step", "Validation, %")
    rows = []
    for one in running:
        run, last = one.run, one.run.records[-1] if one.run.records else None
        step = f"{last['step'] if last else 0} of {one.steps - 1}"
        accuracy_now = f"{_validation(run, last):.1f}" if last else ""
        rows.append((run.dataset, run.label, run.held_out, run.hparams_seed, run.trial_seed, step, accuracy_now))
    colours = {label: colour for colour, label in enumerate(labels_of(one.run for one in started))}
    parts: tuple[Exhibit, ...] = listing(head, rows), *_validation_curves(running[:MAX_LINES], colours)
    return [Section("Running", parts)] if running else []


def _validation_curves(running: Sequence[RunState], colours: Mapping[str, int]) -> list[Figure]:
    """Return charts of the validation accuracy with one line per run and axes up to the last step."""
    panels: dict[str, list[Line]] = {}
    for run in (one.run for one in running if one.run.records):
        points = tuple(Point(record["step"], _validation(run, record)) for record in run.records)
        name = f"{run.label}, configuration {run.hparams_seed}, trial {run.trial_seed}"
        in_panel = panels.setdefault(f"{run.dataset}, held out: {run.held_out}", [])
        in_panel.append(Line(name, points, colours[run.label]))
    span = (0.0, float(max((one.steps - 1 for one in running), default=0)))
    return [
        replace(figure, panels=tuple(replace(panel, x_range=span) for panel in figure.panels), notes=())
        for figure in small_charts("running", "Validation accuracy", panels, ACCURACY, VALIDATION, 100.0)
    ]


def _validation(run: Run, record: Record) -> float:
    return 100 * mean_score(record, "out", run.train_domains)


def _failures(started: Iterable[RunState]) -> list[Section]:
    failed = [one.run for one in started if one.state == "failed"]
    head = ("Dataset", "Algorithm", "Held out", "Configuration", "Trial", "Run", "Last lines")
    rows = [
        (
            run.dataset,
            run.label,
            run.held_out,
            run.hparams_seed,
            run.trial_seed,
            run.id[:10],
            "\n".join((run.failure or "There is no message.").splitlines()[-LAST_LINES:]),
        )
        for run in failed[:MAX_FAILURES]
    ]
    more = f"And {len(failed) - MAX_FAILURES} more. " if len(failed) > MAX_FAILURES else ""
    advice = "The whole message is in failed.json of each run. Run them again: pogm resume FOLDER --retry-failed"
    return [Section("Failures", (listing(head, rows), paragraph(more + advice)))] if failed else []
