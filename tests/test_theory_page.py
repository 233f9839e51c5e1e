"""docs/theory.md lists every metric that a run or `pogm measure` reports, and its code runs."""

import re
from pathlib import Path

import pytest
import torch
from digests import RELEASED
from support import batches, toy, trial

from pogm import ERM
from pogm.algorithms import all_algorithms
from pogm.benchmark.results.measurement_table import MEASUREMENTS, rounds_csv
from pogm.benchmark.results.measurements import SHAPES, read_measurements
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import run
from pogm.diagnostics import Probe
from pogm.diagnostics.probe import PROBED

PAGE = (Path(__file__).parents[1] / "docs/theory.md").read_text()
OF_ROUNDS, OF_RECORDS = PAGE.partition("### Metrics of measured rounds")[2].split("### Metrics of a record")


def rows(table: str) -> dict[str, list[str]]:
    """Map each metric of a table to its other columns."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", table, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("theory")
    one = trial(ERM(), steps=3, evaluate_every=2, probe=Probe(every=1, target=True, divergence=True))
    run(one, root / one.id)
    return root


def test_every_metric_of_measured_rounds_is_listed_with_unit_and_meaning():
    listed = rows(OF_ROUNDS)
    assert (MEASUREMENTS.keys() | SHAPES.keys()) - {"round"} <= listed.keys()
    assert all(len(cells) == 2 and all(cells) for cells in listed.values())


def test_every_column_of_the_rounds_is_listed(folder):
    (found,) = read_runs(folder)
    columns = rounds_csv([(found, read_measurements(found))]).splitlines()[0].split(",")
    names = {column.split(" ")[0] for column in columns} - {"dataset", "algorithm", "held_out", "seed", "round"}
    assert names <= rows(OF_ROUNDS).keys()


@pytest.mark.parametrize("name", [name for name in all_algorithms() if name in RELEASED])
def test_every_metric_of_an_algorithm_is_listed_with_the_algorithm(name):
    algorithm = all_algorithms()[name]()
    state, problem = toy(algorithm)
    with torch.no_grad():
        _, metrics = algorithm.step(state, batches(algorithm.minibatches), problem)
    listed = rows(OF_RECORDS)
    on_trajectories = re.search(r"Methods on trajectories are (.*?)\.", PAGE, re.DOTALL)[1]
    for metric in metrics:
        assert metric in listed, f"{name} reports {metric}, which docs/theory.md does not list"
        reporters = listed[metric][1].replace("methods on trajectories", on_trajectories)
        assert reporters.startswith("all") or re.search(rf"\b{name}\b", reporters), f"{metric}: {reporters}"


def test_metrics_of_probes_and_modifiers_are_listed():
    assert {*PROBED, "validation_loss"} <= rows(OF_RECORDS).keys()


def test_its_code_reads_the_records_of_runs(folder, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block.replace("runs/measure", str(folder)), "docs/theory.md", "exec"), {})
    assert capsys.readouterr().out.startswith("ERM ")


@pytest.mark.parametrize(
    "statement", ["Theorem 1", "Theorem 2", "Theorem 3", "Lemma 1", "Lemma 4", "Corollary 1", "Corollary 2"]
)
def test_every_statement_of_the_paper_is_there(statement):
    assert f"| **{statement}**" in PAGE
