"""The numbers on docs/centre.md are those of the records in results/."""

import tarfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.accuracy_tables import averages_table
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Table
from pogm.cli import parse
from pogm.experiments import all_experiments, centre, kappa
from pogm.experiments.paired import differences

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "centre"


COMMANDS = {  # of `pogm experiment`, by the file of its records
    "embedded": "centre kappa --scale embedded",
    "mnist": "centre --scale mnist",
    "kappa_colored_mnist": (
        "kappa --scale mnist --datasets ColoredMNIST --network mlp --steps 301 --evaluate-every 60 --trials 5 "
        "--precision fp32"
    ),
    "pacs": "centre --scale pacs",
}
WEIGHTS = {"pacs": "sha256:ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf"}  # of --weights


@cache
def unpacked(name: str, folder: Path) -> dict[str, Run]:
    with tarfile.open(RECORDS / f"{name}.tar.gz") as archive:
        archive.extractall(folder / name, filter="data")
    return {run.id: run for run in read_runs(folder / name)}


def runs_of(experiment: str, name: str, folder: Path) -> list[Run]:
    """Return the stored runs of an experiment, labelled by row."""
    found = unpacked(name, folder)
    scale = parse(["experiment", *COMMANDS[name].split()]).make_scale()
    rows = all_experiments()[experiment].rows(scale)
    named = [(row.name, _with_weights(trial, WEIGHTS.get(name)).id) for row, trials in rows.items() for trial in trials]
    return [replace(found[id], label=row) for row, id in named if id in found]


def _with_weights(trial: Trial, digest: str | None) -> Trial:
    """Return the trial as with ``--weights``, without the file."""
    return replace(trial, training=replace(trial.training, weights=digest)) if digest else trial


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("records")


def page() -> dict[str, dict[str, list[str]]]:
    """Return the cells by row of the tables in docs/centre.md that follow a comment with the name of their records."""
    tables: dict[str, dict[str, list[str]]] = {}
    name = ""
    for line in (ROOT / "docs" / "centre.md").read_text().splitlines():
        if line.startswith("<!-- records: "):
            name = line.removeprefix("<!-- records: ").removesuffix(" -->")
            tables[name] = {}
        elif name and line.startswith("| ") and not line.startswith("| |"):
            row, *cells = (cell.strip().strip("*") for cell in line.strip("|").split("|"))
            tables[name][row] = cells
        elif name and tables[name] and not line.startswith("|"):
            name = ""
    return tables


def lines(runs: list[Run], selection: Selection, baseline: str) -> dict[str, list[str]]:
    """Return accuracy and paired difference for each dataset, by row."""
    accuracy, difference = averages_table(runs, selection), differences(runs, baseline, selection)
    return interleaved(accuracy, difference)


def interleaved(first: Table, second: Table) -> dict[str, list[str]]:
    """Return the cells of two tables alternately, without their averages, by row."""
    others = second.texts()
    return {
        row: [text for pair in zip(texts[:-1], others[row][:-1], strict=True) for text in pair]
        for row, texts in first.texts().items()
    }


SELECTIONS = {selection.name: selection for selection in (TRAINING_DOMAIN, TEST_DOMAIN)}


@pytest.mark.parametrize("mark", [mark for mark in page() if mark.startswith("centre, ")])
def test_page_about_the_centre_has_the_numbers_of_the_records(mark, folder):
    _, scale, selection = mark.split(", ")
    runs = runs_of("centre", scale, folder)
    assert runs, "the plan of the experiment has changed: its trials are not those of the records"
    assert page()[mark] == lines(runs, SELECTIONS[selection], centre.ERM.name)


def test_all_records_about_the_centre_are_on_the_page():
    kept = {path.name.removesuffix(".tar.gz") for path in RECORDS.glob("*.tar.gz")}
    assert {mark.split(", ")[1] for mark in page()} == kept == COMMANDS.keys()


@pytest.mark.parametrize("name", ["embedded", "kappa_colored_mnist"])
def test_page_has_the_numbers_of_the_records_about_kappa(name, folder):
    runs = runs_of("kappa", name, folder)
    validated = differences(runs, kappa.ROWS[0].name, value=lambda choice: choice.validation)
    tested = differences(runs, kappa.ROWS[0].name)
    assert page()[f"kappa, {name}"] == interleaved(validated, tested)
