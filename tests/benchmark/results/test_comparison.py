"""Comparison with published results: only numbers under the same selection are compared."""

import csv
import io
import json

import pytest

from pogm.benchmark.results.comparison import compare, comparisons_csv
from pogm.benchmark.results.published import find_publication
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import SELECTIONS, oracle_early_stop
from pogm.cli import main

DOMAINS = ("+90%", "+80%", "-90%")


@pytest.fixture
def write(make_run, make_record, tmp_path):
    """Write finished runs that end with these accuracies, one per trial, on every domain of a dataset."""

    def make(label, accuracies, dataset="ColoredMNIST", domains=DOMAINS, held_out=None):
        for domain in range(len(domains)) if held_out is None else held_out:
            for seed, value in enumerate(accuracies):
                lines = [make_record(5000, [value] * len(domains), [value] * len(domains))]
                make_run(lines, label=label, dataset=dataset, domains=domains, test_domains=[domain], trial_seed=seed)
        return read_runs(tmp_path)

    return make


def shown(comparison):
    """Return the cells of each pair as text."""
    table = comparison.table()
    return [tuple(table.row_texts(row)) for row in table.rows]


def test_common_numbers_are_paired_under_the_same_selection(write):
    write("ERM", [0.50, 0.60])
    runs = write("NobodyElse", [0.9])
    found = compare(runs, find_publication("domainbed"))
    assert [comparison.selection.name for comparison in found] == ["training-domain", "test-domain"]
    test_domain = found[1]
    assert shown(test_domain) == [
        ("ColoredMNIST", "ERM", "+90%", "55.0 ± 3.5", "71.8 ± 0.4", "-16.8"),
        ("ColoredMNIST", "ERM", "+80%", "55.0 ± 3.5", "72.9 ± 0.1", "-17.9"),
        ("ColoredMNIST", "ERM", "-90%", "55.0 ± 3.5", "28.7 ± 0.5", "+26.3"),
        ("ColoredMNIST", "ERM", "Avg", "55.0 ± 3.5", "57.8 ± 0.2", "-2.8"),
    ]
    for comparison in found:
        assert {pair.theirs.selection for pair in comparison.pairs} == {comparison.selection.name}


def test_paper_is_compared_under_test_domain_selection_by_averages(write):
    runs = write("POGM", [0.663])
    (comparison,) = compare(runs, find_publication("paper"))
    assert comparison.selection.name == "test-domain"
    assert shown(comparison) == [("ColoredMNIST", "POGM", "Avg", "66.3", "66.3 ± 1.2", "+0.0")]


def test_runs_with_a_searched_value_are_compared_with_the_ablation_of_that_value(make_run, make_record, tmp_path):
    """Tables 3 to 5: selection is among the runs with one value."""
    for hparams_seed, (kappa, value) in enumerate({0.05: 0.50, 0.1: 0.40, 0.5: 0.60}.items()):
        for domain in range(3):
            make_run(
                [make_record(5000, [value] * 3, [value] * 3)],
                label="POGM",
                dataset="ColoredMNIST",
                domains=DOMAINS,
                test_domains=[domain],
                hparams_seed=hparams_seed,
                kappa=kappa,
            )
    training, test = compare(read_runs(tmp_path), find_publication("paper"))
    assert [texts[1:5] for texts in shown(test)] == [
        ("POGM", "Avg", "60.0", "66.3 ± 1.2"),
        ("POGM, kappa = 0.05", "Avg", "50.0", "62.0 ± 1.4"),
        ("POGM, kappa = 0.1", "Avg", "40.0", "64.5 ± 1.6"),
        ("POGM, kappa = 0.5", "Avg", "60.0", "63.8 ± 1.0"),
    ]
    assert [pair.algorithm for pair in training.pairs] == [f"POGM, kappa = {value}" for value in (0.05, 0.1, 0.5)]


def test_notes_are_shown_with_the_rows_that_they_are_about(write):
    erm = " ".join(compare(write("ERM", [0.5]), find_publication("paper"))[0].footnotes)
    assert "early" not in erm
    assert "CDANN" not in erm
    write("POGM", [0.5])
    write("SAGM", [0.5])
    text = " ".join(compare(write("RDM", [0.5]), find_publication("paper"))[0].footnotes)
    for caveat in ("stopped early by the test domain", "CDANN of DomainBed", "under training-domain validation"):
        assert caveat in text


def test_average_over_too_few_domains_is_not_compared(write):
    (_, comparison) = compare(write("ERM", [0.5], held_out=[0, 2]), find_publication("domainbed"))
    assert [pair.domain for pair in comparison.pairs] == ["+90%", "-90%"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("ANDMask", "AND-mask"), ("ERM + MixStyle", "Mixstyle"), ("CAG1", "POGM")]
)
def test_different_spellings_of_an_algorithm_are_the_same(write, ours, theirs):
    (comparison,) = compare(write(ours, [0.5]), find_publication("paper"))
    assert comparison.pairs[0].theirs.algorithm == theirs


def test_domains_are_compared_by_index_and_not_by_name(write):
    runs = write("ERM", [0.5], dataset="PACS", domains=("art_painting", "cartoon", "photo", "sketch"))
    pairs = compare(runs, find_publication("domainbed"))[0].pairs
    assert [(pair.domain, pair.theirs.domain) for pair in pairs[:2]] == [("art_painting", "A"), ("cartoon", "C")]


def test_dataset_with_other_domains_is_compared_by_its_average_only(write):
    runs = write("ERM", [0.5], dataset="PACS", domains=("A", "B"))
    assert [pair.domain for pair in compare(runs, find_publication("domainbed"))[0].pairs] == ["Avg"]


def test_average_over_all_datasets_needs_all_datasets(write):
    datasets = ("ColoredMNIST", "RotatedMNIST", "VLCS", "PACS", "OfficeHome", "TerraIncognita")
    for dataset in datasets:
        runs = write("ERM", [0.5], dataset=dataset, domains=("a", "b"))
    assert "Averages" not in {pair.dataset for pair in compare(runs, find_publication("paper"))[0].pairs}
    runs = write("ERM", [0.5], dataset="DomainNet", domains=("a", "b"))
    last = shown(compare(runs, find_publication("paper"))[0])[-1]
    assert last == ("Averages", "ERM", "Avg", "50.0", "68.7", "-18.7")


def test_early_stopped_oracle_is_compared_only_with_itself(write):
    runs = write("POGM", [0.5])
    assert all(c.selection in SELECTIONS for c in compare(runs, find_publication("official")))
    (comparison,) = compare(runs, find_publication("official"), [oracle_early_stop(3000)])
    assert comparison.pairs[-1].theirs.mean == 63.8
    assert compare(runs, find_publication("official"), [oracle_early_stop(2000)]) == []


def test_csv_has_our_columns_and_then_the_published_ones(write):
    found = compare(write("ERM", [0.5]), find_publication("paper"))
    (row,) = csv.DictReader(io.StringIO(comparisons_csv(found)))
    assert row == {
        "dataset": "ColoredMNIST",
        "algorithm": "ERM",
        "selection": "test-domain",
        "domain": "Avg",
        "mean": "50.0000",
        "stderr": "",
        "n": "1",
        "against": "paper",
        "published_mean": "57.8",
        "published_stderr": "0.2",
        "difference": "-7.8000",
    }


@pytest.mark.parametrize("form", ["text", "csv", "json", "latex", "html"])
def test_report_command_compares_in_every_format(write, form, tmp_path, capsys):
    write("ERM", [0.5, 0.6])
    path = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--against", "paper", "--format", form, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    if form == "text":
        assert "Compared with the paper's tables: test-domain" in out
        assert "55.0 ± 3.5  57.8 ± 0.2        -2.8" in out
    if form == "json":
        last = json.loads(out)[-1]
        assert (last["against"], last["rows"][0]["published"]) == ("paper", {"mean": 57.8, "stderr": 0.2})
    if form == "csv":
        assert len(out.splitlines()) == 2
    if form == "latex":
        assert r"ColoredMNIST & ERM & Avg & 55.0 $\pm$ 3.5 & 57.8 $\pm$ 0.2 & -2.8 \\" in out
    if form in ("text", "html"):
        page = path.read_text()
        assert "Compared with the paper" in page
        assert "<td>57.8<small> ± 0.2</small></td><td>-2.8</td>" in page


def test_report_command_says_if_there_is_nothing_to_compare(write, tmp_path, capsys):
    write("ERM", [0.5], dataset="Toy")
    assert main(["report", str(tmp_path), "--against", "paper", "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert "Nothing here to compare with the paper's tables" in printed.err
    assert len(printed.out.splitlines()) == 1


def test_runs_of_domainbed_are_compared_with_its_tables(write):
    """Runs of DomainBed have a suffix in their label if there are also runs of ours."""
    runs = write("ERM (DomainBed)", [0.5])
    assert compare(runs, find_publication("domainbed"))[0].pairs[0].algorithm == "ERM (DomainBed)"
