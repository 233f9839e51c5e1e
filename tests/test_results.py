"""Published numbers are those of the records in results/."""

import json
import re
import tarfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import pytest

from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.accuracy_tables import averages_table
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.published import find_publication
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN, Selection
from pogm.benchmark.results.table import Table
from pogm.cli import parse
from pogm.evidence.archives import Complete, complete_sweeps, read_all
from pogm.evidence.pages import MARK, update_tables
from pogm.evidence.plan import plan_text
from pogm.evidence.sweeps import FOLDERS, SWEEPS, WEIGHTS, Sweep
from pogm.evidence.tables import PUBLICATIONS
from pogm.experiments import all_experiments, kappa
from pogm.experiments.evidence_search import BEST

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "centre"
RESULTS = ROOT / "results"


COMMANDS = {  # of `pogm experiment`, by the file of its records in results/centre
    "embedded": "centre kappa --scale embedded",
    "mnist": "centre --scale mnist",
    "kappa_colored_mnist": (
        "kappa --scale mnist --datasets ColoredMNIST --network mlp --steps 301 --evaluate-every 60 --trials 5 "
        "--precision fp32"
    ),
    "pacs": "centre --scale pacs",
}
GIVEN_WEIGHTS = {"pacs": WEIGHTS["resnet50_v1"].sha256}  # of --weights


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
    digest = GIVEN_WEIGHTS.get(name)
    named = [(row.name, _with_weights(trial, digest).id) for row, trials in rows.items() for trial in trials]
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
    assert page()[mark] == lines(runs, SELECTIONS[selection], "ERM")


def test_all_records_about_the_centre_are_on_the_page():
    kept = {path.name.removesuffix(".tar.gz") for path in RECORDS.glob("*.tar.gz")}
    assert {mark.split(", ")[1] for mark in page()} == kept == COMMANDS.keys()


@pytest.mark.parametrize("name", ["embedded", "kappa_colored_mnist"])
def test_page_has_the_numbers_of_the_records_about_kappa(name, folder):
    runs = runs_of("kappa", name, folder)
    validated = differences(runs, kappa.ROWS[0].name, value=lambda choice: choice.validation)
    tested = differences(runs, kappa.ROWS[0].name)
    assert page()[f"kappa, {name}"] == interleaved(validated, tested)


@pytest.fixture(scope="module")
def stored() -> dict[Sweep, list[Run]]:
    return read_all(RESULTS)


@pytest.fixture(scope="module")
def complete(stored) -> Complete:
    return complete_sweeps(stored)


PAGES = [path for path in sorted(RESULTS.rglob("README.md")) if MARK.search(path.read_text())]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_page_has_the_numbers_of_the_records(path, complete):
    """A page of the evidence is covered as soon as it has a mark."""
    text = path.read_text()
    assert text == update_tables(text, complete), "run: python benchmarks/update_results.py"


def test_plan_is_that_of_the_records(stored):
    assert (RESULTS / "PLAN.md").read_text() == plan_text(stored), "run: python benchmarks/update_results.py"


def test_every_sweep_with_two_complete_rows_has_tables_on_a_page(complete):
    marks = {
        tuple(mark.group("kind", "sweep", "selection")) for path in PAGES for mark in MARK.finditer(path.read_text())
    }
    expected = {(FOLDERS[sweep.experiment], sweep.name, None) for sweep in complete if sweep not in SWEEPS}
    assert {kind for kind, *_ in expected} == {name for name in FOLDERS.values() if (RESULTS / name).is_dir()}
    assert expected | {("successes", None, None)} <= marks
    for sweep in SWEEPS:
        if len({run.label for run in complete.get(sweep, ())}) > 1:
            tables = [("evidence", None), *(("domains", name) for name in SELECTIONS)]
            assert {(kind, sweep.name, selection) for kind, selection in tables} <= marks


def test_stored_runs_are_planned_once_and_deterministic(stored, complete):
    for sweep in complete:
        runs = sweep.find_runs(stored[sweep])
        samples = [run.trial.get("samples") for run in runs]
        where = [(run.label, run.test_domains, run.trial_seed, run.hparams_seed) for run in runs]
        cells = Counter(zip(where, samples, strict=True))
        assert set(cells.values()) == {1}
        assert all(run.provenance["deterministic"] for run in runs if sweep.on_gpu and not run.members)


def test_searched_methods_are_the_best_of_the_evidence(complete):
    """By the mean difference to ERM under training-domain validation, without rows that fix settings."""
    for sweep in SWEEPS:
        if sweep.dataset in BEST:
            runs = complete[sweep]
            gains = {row.key: row.estimates[0].mean for row in differences(runs, "ERM").rows}
            plain = {row.name for row in sweep.plan if not row.settings} - {"ERM"}
            assert sorted(plain, key=lambda name: -gains[name])[:8] == list(BEST[sweep.dataset])


def test_main_table_is_what_a_few_lines_of_python_compute():
    """The difference of GroupDRO to ERM on ColoredMNIST, from the files in the archive."""
    values: dict[tuple[str, int, int], float] = {}
    with tarfile.open(RESULTS / "mnist" / "colored_mnist.tar.gz") as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            if name != "trial.json":
                continue
            saved = json.load(archive.extractfile(member))
            if saved["label"] not in ("ERM", "GroupDRO"):
                continue
            (held_out,) = saved["trial"]["test_domains"]
            others = [domain for domain in range(3) if domain != held_out]
            records = [json.loads(line) for line in archive.extractfile(f"{folder}/records.jsonl")]
            best = max(records, key=lambda record: fmean(record["accuracy"]["out"][domain] for domain in others))
            values[saved["label"], held_out, saved["trial"]["trial_seed"]] = best["accuracy"]["in"][held_out]
    gains = [100 * fmean(values["GroupDRO", d, s] - values["ERM", d, s] for d in range(3)) for s in range(5)]
    text = f"| {fmean(gains):+.2f} ± {stdev(gains) / 5**0.5:.2f} |"
    (row,) = (
        line
        for line in (RESULTS / "mnist" / "README.md").read_text().splitlines()
        if line.startswith("| GroupDRO | 52")
    )
    assert text in row


def test_table_of_variants_is_what_a_few_lines_of_python_compute():
    """The difference of Nesterov momentum with κ = 0.5 to κ = 0 on HeartDisease after the last step, from the files."""
    values: dict[tuple[float, int, int], float] = {}
    with tarfile.open(RESULTS / "variants" / "heart_disease.tar.gz") as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            if name != "trial.json":
                continue
            trial = json.load(archive.extractfile(member))["trial"]
            if trial["algorithm"]["name"].endswith(":NesterovPOGM"):
                (held_out,) = trial["test_domains"]
                *_, last = archive.extractfile(f"{folder}/records.jsonl")
                accuracy = json.loads(last)["accuracy"]["in"][held_out]
                values[trial["algorithm"]["kappa"], held_out, trial["trial_seed"]] = accuracy
    gains = [100 * fmean(values[0.5, d, s] - values[0.0, d, s] for d in range(4)) for s in range(10)]
    cells = page(RESULTS / "variants" / "README.md")["variants, heart_disease"]["Outer Nesterov momentum, κ = 0.5"]
    assert cells[-2:] == [f"{fmean(gains):+.2f} ± {stdev(gains) / 10**0.5:.2f}", "10"]


def plain(path: Path) -> str:
    """Return the text of a page with minus signs as in tables, and in one line."""
    return " ".join(path.read_text().replace("−", "-").split())


@pytest.mark.parametrize("name", ["docs/choose.md", "docs/faq.md", "README.md"])
def test_pages_about_the_choice_of_a_method_have_numbers_of_the_tables(name):
    """Every mean with its standard error on the page is in a table that is recomputed, or in docs/tables.md."""
    known = " ".join(map(plain, [*PAGES, ROOT / "docs" / "centre.md", ROOT / "docs" / "tables.md"]))
    numbers = re.findall(r"[+-]?\d+\.\d+ ± \d+\.\d+", plain(ROOT / name))
    assert len(numbers) > 5
    assert [number for number in numbers if number not in known] == []


def test_numbers_on_the_page_about_publications_are_ours_or_published():
    path = RESULTS / "published" / "README.md"
    results = [result for name in PUBLICATIONS for result in find_publication(name).results]
    known = {f"{one.mean:.1f} ± {one.stderr:.1f}" for one in results if one.stderr is not None}
    ours = " ".join(map(plain, [ROOT / "docs" / "centre.md", RESULTS / "mnist" / "README.md"]))
    numbers = re.findall(r"\d+\.\d ± \d+\.\d", path.read_text())
    assert len(numbers) > 50
    assert [number for number in numbers if number not in known and number not in ours] == []


TESTED = [path for path in PAGES if path.parent.name != "published"]  # that page has no differences


@pytest.mark.parametrize("path", TESTED, ids=lambda path: path.parent.name)
def test_differences_in_the_text_of_a_page_are_in_its_tables(path):
    lines = path.read_text().replace("−", "-").splitlines()
    text = " ".join(line for line in lines if not line.startswith("|"))
    tables = "\n".join(line for line in lines if line.startswith("|"))
    numbers = re.findall(r"[+-]?\d+\.\d{2,3} ± \d+\.\d{2,3}", text)
    assert len(numbers) > 3
    assert [number for number in numbers if f"| {number} |" not in tables] == []
