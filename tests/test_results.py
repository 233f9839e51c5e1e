"""Published numbers are those of the records in results/."""

import tarfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.tables import averages_table
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
    """The runs of an experiment's plan that were kept, labelled by row."""
    found = unpacked(name, folder)
    scale = parse(["experiment", *COMMANDS[name].split()]).scale_of()
    rows = all_experiments()[experiment].rows(scale)
    named = [(row.name, _with_weights(trial, WEIGHTS.get(name)).id) for row, trials in rows.items() for trial in trials]
    return [replace(found[id], label=row) for row, id in named if id in found]


def _with_weights(trial: Trial, digest: str | None) -> Trial:
    """The trial as ``--weights`` makes it, without the file."""
    return replace(trial, training=replace(trial.training, weights=digest)) if digest else trial


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("records")


def page() -> dict[str, dict[str, list[str]]]:
    """The tables of docs/centre.md that follow a heading with a mark: cells by row."""
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
    """Accuracy and paired difference for each dataset, by row."""
    accuracy, difference = averages_table(runs, selection), differences(runs, baseline, selection)
    both = zip(accuracy.rows, accuracy.cells, difference.cells, strict=True)
    return {
        row: [str(cell) for pair in zip(means[:-1], between[:-1], strict=True) for cell in pair]
        for row, means, between in both
    }


SELECTIONS = {selection.name: selection for selection in (TRAINING_DOMAIN, TEST_DOMAIN)}


@pytest.mark.parametrize("mark", [mark for mark in page() if mark.startswith("centre, ")])
def test_the_page_about_the_centre_shows_what_the_records_say(mark, folder):
    _, scale, selection = mark.split(", ")
    runs = runs_of("centre", scale, folder)
    assert runs, "the plan of the experiment has changed: its trials are not those of the records"
    assert page()[mark] == lines(runs, SELECTIONS[selection], centre.ERM.name)


def test_all_records_about_the_centre_are_on_the_page():
    kept = {path.name.removesuffix(".tar.gz") for path in RECORDS.glob("*.tar.gz")}
    assert {mark.split(", ")[1] for mark in page()} == kept == COMMANDS.keys()


@pytest.mark.parametrize("name", ["embedded", "kappa_colored_mnist"])
def test_and_what_kappa_does(name, folder):
    runs = runs_of("kappa", name, folder)
    validated = differences(runs, kappa.ROWS[0].name, value=lambda choice: choice.validation)
    tested = differences(runs, kappa.ROWS[0].name)
    expected = {
        row: [str(cell) for pair in zip(first[:-1], second[:-1], strict=True) for cell in pair]
        for row, first, second in zip(validated.rows, validated.cells, tested.cells, strict=True)
    }
    assert page()[f"kappa, {name}"] == expected
