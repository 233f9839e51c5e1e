"""Published numbers are those of the records in results/."""

import tarfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.paired import detectable, differences, interval
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Estimate, Table
from pogm.cli import parse
from pogm.experiments import all_experiments, centre, kappa

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "centre"
EVIDENCE = ROOT / "results" / "mnist"


COMMANDS = {  # of `pogm experiment`, by the file of its records in results/centre
    "embedded": "centre kappa --scale embedded",
    "mnist": "centre --scale mnist",
    "kappa_colored_mnist": (
        "kappa --scale mnist --datasets ColoredMNIST --network mlp --steps 301 --evaluate-every 60 --trials 5 "
        "--precision fp32"
    ),
    "pacs": "centre --scale pacs",
}
EVIDENCE_COMMANDS = {  # the same of results/mnist
    "colored_mnist": "evidence --scale mnist --datasets ColoredMNIST --evaluate-every 100 --trials 5",
}
WEIGHTS = {"pacs": "sha256:ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf"}  # of --weights


@cache
def unpacked(name: str, folder: Path) -> dict[str, Run]:
    records = EVIDENCE if name in EVIDENCE_COMMANDS else RECORDS
    with tarfile.open(records / f"{name}.tar.gz") as archive:
        archive.extractall(folder / name, filter="data")
    return {run.id: run for run in read_runs(folder / name)}


def runs_of(experiment: str, name: str, folder: Path) -> list[Run]:
    """Return the stored runs of an experiment, labelled by row."""
    found = unpacked(name, folder)
    scale = parse(["experiment", *(COMMANDS | EVIDENCE_COMMANDS)[name].split()]).make_scale()
    rows = all_experiments()[experiment].rows(scale)
    named = [(row.name, _with_weights(trial, WEIGHTS.get(name)).id) for row, trials in rows.items() for trial in trials]
    return [replace(found[id], label=row) for row, id in named if id in found]


def _with_weights(trial: Trial, digest: str | None) -> Trial:
    """Return the trial as with ``--weights``, without the file."""
    return replace(trial, training=replace(trial.training, weights=digest)) if digest else trial


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("records")


def page(path: Path = ROOT / "docs" / "centre.md") -> dict[str, dict[str, list[str]]]:
    """Return the cells by row of the tables of a page that follow a comment with the name of their records."""
    tables: dict[str, dict[str, list[str]]] = {}
    name = ""
    for line in path.read_text().splitlines():
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


def evidence(runs: list[Run]) -> dict[str, list[str]]:
    """Return the cells of the main table of results/mnist by row: both selections, and differences to ERM."""
    tables = [averages_table(runs, selection) for selection in (TRAINING_DOMAIN, TEST_DOMAIN)]
    paired = [differences(runs, "ERM", selection) for selection in (TRAINING_DOMAIN, TEST_DOMAIN)]
    rows = {}
    for number, label in enumerate(tables[0].labels):
        validated, last = (table.rows[number].cells[0] for table in tables)
        gain, last_gain = (table.rows[number].cells[0] for table in paired)
        rows[label] = [
            f"{validated.mean:.1f} ± {validated.stderr:.1f}",
            *difference_cells(gain, len(tables[0].labels) - 1, baseline=label == "ERM"),
            f"{last.mean:.1f} ± {last.stderr:.1f}",
            *difference_cells(last_gain, len(tables[0].labels) - 1, baseline=label == "ERM")[:2],
            str(gain.n),
        ]
    return rows


def difference_cells(gain: Estimate, comparisons: int, *, baseline: bool) -> list[str]:
    if baseline:
        return ["–", "–", "–"]
    low, high = interval(gain, comparisons)
    differs = "" if low <= 0 <= high else " ≠"
    smallest = detectable(gain, comparisons)
    return [f"{gain.mean:+.2f} ± {gain.stderr:.2f}", f"{low:+.1f} … {high:+.1f}{differs}", f"{smallest:.1f}"]


def by_domain(runs: list[Run], selection: Selection) -> dict[str, list[str]]:
    """Return the accuracy on every held-out domain, by row."""
    (dataset,) = {run.dataset for run in runs}
    table = dataset_table(runs, dataset, selection).texts()
    return {row: [text.rstrip("*") for text in texts] for row, texts in table.items()}


@pytest.mark.parametrize("name", EVIDENCE_COMMANDS)
def test_evidence_has_the_numbers_of_the_records(name, folder):
    runs = runs_of("evidence", name, folder)
    found = page(EVIDENCE / "README.md")
    assert found[f"evidence, {name}"] == evidence(runs)
    for selection in SELECTIONS.values():
        table = {row: cells[:-1] for row, cells in by_domain(runs, selection).items()}
        assert found[f"domains, {name}, {selection.name}"] == table


@pytest.mark.parametrize("name", EVIDENCE_COMMANDS)
def test_evidence_has_complete_rows_only(name, folder):
    runs = runs_of("evidence", name, folder)
    assert len(runs) == len(unpacked(name, folder)), "every stored run is planned"
    cells = Counter((run.label, run.test_domains, run.trial_seed) for run in runs)
    domains, seeds = len(runs[0].domains), 5
    assert set(cells.values()) == {1}
    assert len(cells) == len({run.label for run in runs}) * domains * seeds
    assert all(run.provenance["deterministic"] for run in runs)
