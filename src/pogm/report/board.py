"""The board: progress, failures, learning curves and result tables of a folder of runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from statistics import fmean

from pogm._system.errors import PogmError
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table, labels_of
from pogm.benchmark.results.records import Record, Run, accuracy
from pogm.benchmark.results.selection import SELECTIONS
from pogm.benchmark.runs.directory import STATES
from pogm.benchmark.runs.estimate import duration
from pogm.report.escaping import escape
from pogm.report.figure import Figure, Line, Point
from pogm.report.forecast import seconds_left
from pogm.report.markup import Exhibit, Html, details, grid, paragraph
from pogm.report.page import Section, render
from pogm.report.runs import figures_of
from pogm.report.series import ACCURACY, small_charts
from pogm.report.watch import Glance, Watch, Watched

ALL = ""  # all datasets; no dataset has this name
LAST_LINES = 6  # lines of an error message that are shown
MOST = 50  # failures shown
CHARTED = 24  # largest number of running runs in charts
READ_RUNNING = "Accuracy on the validation images of the domains that a run trains on, each run for itself."
GROWING = (
    "Lines are means over trial seeds, of runs with an algorithm's first configuration, as far as each of them is by "
    "now; bands are ± one standard error."
)


class Board:
    """The page of a folder. It is rendered again if a file changed, and its tables if another run is done."""

    def __init__(self, folder: Path) -> None:
        self.watch, self.title = Watch(folder), f"Board of {folder}"
        self.made: tuple[object, str] = (None, "")
        self.tables: dict[str, tuple[object, tuple[Exhibit, ...]]] = {}

    def page(self) -> str:
        """Return the page as HTML, with every name escaped."""
        glance = self.watch.look()
        now = glance.remarks, len(glance.waiting), [(one.state, one.run.folder, one.changed) for one in glance.begun]
        if self.made[0] != now:
            self.made = now, render(self.title, self.sections(glance), live=True)
        return self.made[1]

    def sections(self, glance: Glance) -> list[Section]:
        """Return all sections; those that change most come first."""
        runs = [one.run for one in glance.begun]
        datasets = list(dict.fromkeys(run.dataset for run in runs))
        return [
            Section("Progress", (*_progress(glance), *map(paragraph, glance.remarks))),
            *_running(glance.begun),
            *_failures(glance.begun),
            *([Section("All datasets", self._finished(ALL, runs))] if len(datasets) > 1 else []),
            *(Section(name, (*self._finished(name, runs), *_growing(name, runs))) for name in datasets),
        ]

    def _finished(self, dataset: str, runs: Sequence[Run]) -> tuple[Exhibit, ...]:
        done = [run for run in runs if run.done and dataset in (ALL, run.dataset)]
        known = [run.id for run in done]
        if self.tables.get(dataset, (None,))[0] != known:
            self.tables[dataset] = known, _tables(dataset, done)
        return self.tables[dataset][1]


def _progress(glance: Glance) -> Iterator[Html]:
    counts = Counter(one.state for one in glance.begun) + Counter(waiting=len(glance.waiting))
    total = counts.total()
    style = resources.files("pogm.report").joinpath("board.css").read_text(encoding="utf-8")
    parts = "".join(f'<span class="is-{s}" style="flex-grow:{counts[s]}"></span>' for s in STATES if counts[s])
    states = "".join(
        f'<li class="{"some" if counts[s] else "none"}"><i class="is-{s}"></i>{counts[s]} {s}</li>' for s in STATES
    )
    yield Html(
        f'<style>{style}</style><p class="left">{escape(_summary(glance, counts))}</p>'
        f'<div class="bar" role="img" aria-label="{counts["done"]} of {total} runs are done">{parts}</div>'
        f'<ul class="states">{states}</ul>'
    )
    kinds: dict[tuple[str, str], Counter[str]] = {}
    for one in glance.begun:
        kinds.setdefault((one.run.dataset, one.run.label), Counter())[one.state] += 1
    for trial in glance.waiting:
        kinds.setdefault((trial.dataset.title, trial.label), Counter())["waiting"] += 1
    rows = [(*kind, *(found[state] for state in STATES)) for kind, found in kinds.items()]
    yield details("By dataset and algorithm", ("Dataset", "Algorithm", *map(str.capitalize, STATES)), rows)


def _summary(glance: Glance, counts: Counter[str]) -> str:
    total, failed = counts.total(), counts["failed"]
    if not total:
        return "There are no runs here yet."
    if counts["done"] + failed == total:
        begun = "" if glance.planned else " that have begun"
        return f"All runs{begun} are done{f', but for {failed} that failed' if failed else ''}."
    share = sum(one.share for one in glance.begun if one.state != "failed") / (total - failed)
    done = f"{share:.0%} done" if glance.planned else f"{share:.0%} of what has begun is done"
    if not counts["running"]:
        return f"{done}. Nothing is running."
    left = seconds_left(glance)
    return f"{done}, {'time left not known yet' if left is None else f'about {duration(left)} left'}."


def _running(begun: Sequence[Watched]) -> list[Section]:
    running = [one for one in begun if one.state == "running"]
    head = ("Dataset", "Algorithm", "Held out", "Configuration", "Trial", "Step", "Validation, %")
    rows = []
    for one in running:
        run, last = one.run, one.run.records[-1] if one.run.records else None
        step = f"{last['step'] if last else 0} of {one.steps - 1}"
        learnt = f"{_validation(run, last):.1f}" if last else ""
        rows.append((run.dataset, run.label, run.held_out, run.hparams_seed, run.trial_seed, step, learnt))
    colours = {label: colour for colour, label in enumerate(labels_of(one.run for one in begun))}
    return [Section("Running", (grid(head, rows), *_learning(running[:CHARTED], colours)))] if running else []


def _learning(running: Sequence[Watched], colours: Mapping[str, int]) -> list[Figure]:
    """Validation accuracy of running runs: one line each, on axes up to the last step."""
    panels: dict[str, list[Line]] = {}
    for run in (one.run for one in running if one.run.records):
        points = tuple(Point(record["step"], _validation(run, record)) for record in run.records)
        name = f"{run.label}, configuration {run.hparams_seed}, trial {run.trial_seed}"
        in_panel = panels.setdefault(f"{run.dataset}, held out: {run.held_out}", [])
        in_panel.append(Line(name, points, colours[run.label]))
    span = (0.0, float(max((one.steps - 1 for one in running), default=0)))
    return [
        replace(figure, panels=tuple(replace(panel, x_range=span) for panel in figure.panels), notes=())
        for figure in small_charts("running", "What they have learnt", panels, ACCURACY, READ_RUNNING, 100.0)
    ]


def _validation(run: Run, record: Record) -> float:
    return 100 * fmean(accuracy(record, "out", domain) for domain in run.train_domains)


def _failures(begun: Iterable[Watched]) -> list[Section]:
    failed = [one.run for one in begun if one.state == "failed"]
    head = ("Dataset", "Algorithm", "Held out", "Configuration", "Trial", "Run", "Last lines")
    rows = [
        (
            run.dataset,
            run.label,
            run.held_out,
            run.hparams_seed,
            run.trial_seed,
            run.id[:10],
            _last(run.failure),
        )
        for run in failed[:MOST]
    ]
    more = f"And {len(failed) - MOST} more. " if len(failed) > MOST else ""
    again = "All of it is in each run's failed.json. Run them again: pogm resume FOLDER --retry-failed"
    return [Section("Failures", (grid(head, rows), paragraph(more + again)))] if failed else []


def _last(failure: str | None) -> str:
    return "\n".join((failure or "It did not say why.").splitlines()[-LAST_LINES:])


def _tables(dataset: str, done: Sequence[Run]) -> tuple[Exhibit, ...]:
    """Result tables of finished runs."""
    if not done:
        return (paragraph("No run is done yet."),)
    try:
        made = [averages_table(done, s) if dataset == ALL else dataset_table(done, dataset, s) for s in SELECTIONS]
    except PogmError as error:  # such as runs with different domains of a dataset
        return (paragraph(str(error)),)
    return tuple(table for table in made if not table.empty)


def _growing(dataset: str, runs: Sequence[Run]) -> list[Figure]:
    """Learning curves of all runs, also of unfinished ones, which charts leave out otherwise."""
    try:
        figures = figures_of([replace(run, done=True) for run in runs], dataset)
    except PogmError:  # the tables show this error
        return []
    return [replace(figure, notes=(GROWING, *figure.notes[1:])) for figure in figures]
