"""Audit of published tables: known findings in the paper's tables (section 14 of the protocol), and clean tables."""

import json
from pathlib import Path

import pytest

from pogm._system.errors import DataError
from pogm.benchmark.results.audit import Finding, audit
from pogm.benchmark.results.audit_tables import Row, Value, make_table, paper_tables, read_table, reference_tables
from pogm.cli import main

CLEAN = """\
algorithm,year,A,A_stderr,A_mark,B,B_stderr,B_mark,avg,rank_arith_mean
ERM,,80.0,0.2,second,60.0,0.1,second,70.0,2.0
New,2026,82.0,0.3,best,61.0,0.2,best,71.5,1.0
Old,2020,79.1,0.3,below_erm,59.0,0.2,below_erm,69.0,3.0
"""


@pytest.fixture(scope="module")
def paper() -> list[Finding]:
    sources = ("domainbed", "official", "official-log")
    return audit(paper_tables(), [table for name in sources for table in reference_tables(name)])


def found(findings: list[Finding], check: str) -> dict[str, str]:
    """Return the texts of the findings of a check, by place."""
    return {f"{one.table}: {one.where}": one.text for one in findings if one.check == check}


def test_paper_has_one_wrong_rank_and_no_wrong_average(paper):
    """Item 18."""
    assert list(found(paper, "rank")) == ["Table 1: EQRM"]
    assert "printed 8.99" in found(paper, "rank")["Table 1: EQRM"]
    assert "arithmetic mean 8.86" in found(paper, "rank")["Table 1: EQRM"]
    assert found(paper, "mean") == {}


def test_paper_lacks_three_marks_of_values(paper):
    """Item 18. The fourth, on EQRM's average, is not in the data."""
    assert set(found(paper, "mark")) == {
        "Table 1: VREx, ColoredMNIST",
        "Table 1: ITTA, ColoredMNIST",
        "Table 1: CIRL, RotatedMNIST",
    }


def test_paper_has_the_row_cdann_of_domainbed_as_sagm(paper):
    """Item 16; item 9 for the second one."""
    copies = found(paper, "copy")
    assert copies["Table 1: SAGM"].startswith("5 of 7 values equal CDANN (test-domain) of DomainBed's tables")
    logged = copies["Table 3, training-domain: POGM, meta_lr = 0.01"]
    assert logged.startswith("4 of 7 values equal POGM, meta_lr = 0.05 (training-domain)")
    assert len(copies) == 2


def test_paper_has_six_baselines_of_domainbed(paper):
    """Item 17: they are under the same rule, so these are notes."""
    notes = {place for place, text in found(paper, "same").items() if "7 of 7" in text}
    assert notes == {f"Table 1: {name}" for name in ("ERM", "RSC", "MTL", "SagNet", "ARM", "VREx")}


def test_paper_has_the_column_officehome_under_another_name(paper):
    """Item 8."""
    assert list(found(paper, "column")) == ["Table 2: POGM, VLCS"]
    assert "OfficeHome" in found(paper, "column")["Table 2: POGM, VLCS"]


def test_paper_has_values_of_another_rule(paper):
    """Items 3, 10 and 14."""
    rules = found(paper, "rule")
    assert "test-domain-early-stop-3000" in rules["Table 4, test-domain: POGM, inner_steps = 1"]
    assert "the stated rule is test-domain" in rules["Table 4, test-domain: POGM, inner_steps = 1"]
    assert "40.2 ± 0.3" in rules["Table 1: POGM, DomainNet"]
    assert "3 of 3 rows" in rules["Table 3, test-domain; Table 3, training-domain: DomainNet"]
    assert "means 71.7 and 70.0" in found(paper, "differs")["Table 1: POGM"]


def test_paper_has_best_marks_within_the_noise(paper):
    noise = found(paper, "noise")
    assert set(noise) == {"Table 1: Fishr, ColoredMNIST", "Table 1: POGM, PACS", "Table 1: POGM, TerraIncognita"}
    assert "0.9 standard errors: √(1.4² + 1.3²) = 1.91" in noise["Table 1: Fishr, ColoredMNIST"]


def test_clean_table_has_no_findings(tmp_path):
    path = tmp_path / "clean.csv"
    path.write_text(CLEAN)
    assert audit(read_table(path), reference_tables("domainbed")) == []
    assert main(["audit", str(path)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("71.5,1.0", "71.7,1.0", "mean"),
        ("70.0,2.0", "70.0,2.5", "rank"),
        ("82.0,0.3,best", "82.0,0.3,", "mark"),
        ("79.1,0.3,below_erm", "79.1,0.3,", "mark"),
        ("82.0,0.3,best", "82.0,1.3,best", "noise"),
    ],
)
def test_one_change_of_a_clean_table_gives_one_finding(tmp_path, old, new, check):
    path = tmp_path / "changed.csv"
    assert CLEAN.count(old) == 1
    path.write_text(CLEAN.replace(old, new))
    assert [finding.check for finding in audit(read_table(path))] == [check]
    assert main(["audit", str(path)]) == 7
    assert main(["audit", str(tmp_path / "absent.csv")]) == 3


def test_rounding_of_printed_values_is_no_finding():
    """80.04 and 60.04 are printed as 80.0 and 60.0; their mean 70.04 could be printed as 70.1 after rounding twice."""
    cells = {"A": Value("80.0", "0.1"), "B": Value("60.0", "0.1")}
    assert audit([make_table("t", [Row("ERM", cells, "70.1")])]) == []
    assert [one.check for one in audit([make_table("t", [Row("ERM", cells, "70.2")])])] == ["mean"]


def test_copied_row_needs_three_equal_values_with_standard_errors():
    cells = {name: Value(f"{70 + number}.1", "0.3") for number, name in enumerate("ABCD")}
    reference = [make_table("Other", [Row("Theirs", cells)])]
    two = {name: value if name in "AB" else Value("50.0", "0.1") for name, value in cells.items()}
    bare = {name: Value(value.mean) for name, value in cells.items()}
    assert [one.check for one in audit([make_table("t", [Row("Ours", cells)])], reference)] == ["copy"]
    assert audit([make_table("t", [Row("Ours", two), Row("Bare", bare)])], reference) == []


def test_row_of_a_table_without_a_stated_rule_does_not_contradict_it():
    cells = {name: Value(f"{70 + number}.1", "0.3") for number, name in enumerate("ABCD")}
    reference = [make_table("Other", [Row("ERM", cells)], "test-domain")]
    for stated, check in (("", "same"), ("test-domain", "same"), ("training-domain", "rule")):
        assert [one.check for one in audit([make_table("t", [Row("ERM", cells)], stated)], reference)] == [check]


def test_part_of_a_search_with_a_standard_error_of_0_is_no_finding():
    rows = [Row("POGM", {"A": Value("90.0", "0.0")}), Row("POGM, kappa = 0.5", {"A": Value("85.0", "0.0")})]
    assert audit([make_table("t", rows)]) == []


def test_long_file_equals_the_wide_one(tmp_path):
    lines = ["algorithm,dataset,value,stderr,mark"]
    header, *rows = (line.split(",") for line in CLEAN.splitlines())
    for row in rows:
        cell = dict(zip(header, row, strict=True))
        lines += [f"{row[0]},{d},{cell[d]},{cell[f'{d}_stderr']},{cell[f'{d}_mark']}" for d in "AB"]
        lines.append(f"{row[0]},avg,{cell['avg']},,")
    (tmp_path / "long.csv").write_text("\n".join(lines))
    (tmp_path / "wide.csv").write_text(CLEAN)
    (long,), (wide,) = read_table(tmp_path / "long.csv"), read_table(tmp_path / "wide.csv")
    assert [(r.method, r.cells, r.mean, r.marks) for r in long.rows] == [
        (r.method, r.cells, r.mean, r.marks) for r in wide.rows
    ]


def test_columns_without_standard_errors_and_with_empty_cells_are_datasets(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "algorithm,PACS,PACS_stderr,VLCS,Terra,venue,avg\nERM,80.0,0.5,70.0,60.0,ICLR,70.0\nX,81.0,0.5,70.0,,,\n"
    )
    (table,) = read_table(path)
    assert table.datasets == ("PACS", "VLCS", "Terra")
    assert [*table.rows[1].cells] == ["PACS", "VLCS"]
    assert not [finding for finding in audit([table]) if finding.check == "mean"]


@pytest.mark.parametrize("dash", ["-", "–", "—"])
def test_dash_is_an_empty_cell(tmp_path, dash):
    """A column with a dash was left out, so that the average of every other row seemed wrong."""
    path = tmp_path / "table.csv"
    path.write_text(f"algorithm,A,B,avg\nERM,80.0,70.0,75.0\nX,{dash},70.0,70.0\n", encoding="utf-8")
    (table,) = read_table(path)
    assert [[*row.cells] for row in table.rows] == [["A", "B"], ["B"]]
    assert audit([table]) == []


@pytest.mark.parametrize("header", ["algorithm,A,B,avg", "Method,A,B,Avg", "Algorithm ,A,B,Average", "MODEL,A,B,mean"])
def test_a_wrong_average_is_found_whatever_the_case_of_the_heading(tmp_path, header):
    """With the heading "Avg", which tables of pogm have, the average counted as a dataset, and nothing was wrong."""
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\nERM,50.0,60.0,55.0\nPOGM,51.0,61.0,57.0\n")
    (table,) = read_table(path)
    assert table.datasets == ("A", "B")
    assert [row.mean for row in table.rows] == ["55.0", "57.0"]


def test_command_writes_findings_as_json(tmp_path, capsys):
    path = tmp_path / "findings.json"
    assert main(["audit", "paper", "--json", str(path)]) == 7
    assert "arithmetic mean 8.86" in capsys.readouterr().out
    findings = json.loads(path.read_text())["findings"]
    assert {"check", "table", "where", "text", "is_note"} == set(findings[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a header and lines of the same length"),
        ("a,A\nx,1,2\n", "a header and lines of the same length"),
        ("algorithm,b\nx,y\n", "columns of numbers"),
        ("algorithm,A,A_stderr\nx,1 ± 2,0\n", "numbers in percent"),
        ("algorithm,A,A_stderr\nx,1,n/a\n", "numbers in percent in .*; found 'n/a'"),
        ("algorithm,A,B,avg\nx,1,3,2\ny,1,?,1\n", r"numbers in percent in .*; found '\?'"),
        ("algorithm,A\nx,185.5\n", "from 0 to 100; found '185.5'"),
        ("algorithm,A,A_stderr\nx,80,-0.2\n", "from 0 to 100; found '-0.2'"),
        ("algorithm,A\nx,1\nx,2\n", "one line for each method in .*; found several of x"),
        ("algorithm,A,avg\nx,1,²\n", "numbers in percent in .*; found '²'"),
        ("algorithm,A,rank_median\nx,1,first\n", "numbers in percent in .*; found 'first'"),
        ("algorithm,A,A_mark\nx,1,bold\n", "best, second, below_erm as mark in .*; found 'bold'"),
        ("algorithm,dataset,value,mark\nx,A,1,bold\n", "best, second, below_erm as mark"),
        ("a,A\nx,1\n", "a column algorithm or method"),
        ("algorithm,A,selection\nx,1,oracle\n", "test-domain.* as selection"),
        ("algorithm,data,value,stderr\nx,A,1,2\n", "a column dataset beside the column value"),
        ("algorithm,dataset,mean\nx,A,1\n", "a column value beside the column dataset"),  # pogm report --format csv
        ("algorithm,dataset,value\nx,A,1\nx,A,2\n", "one line for each method and dataset .* several of x on A"),
        ("algorithm,A,A\nx,1,2\n", "each column once in .*; found several of A"),
        ("who,dataset,value\nx,A,1\n", "a column algorithm or method"),
    ],
)
def test_file_of_another_form_is_refused(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_table(path)
    with pytest.raises(DataError, match="Expected a CSV file"):
        read_table(Path(tmp_path / "none.csv"))
