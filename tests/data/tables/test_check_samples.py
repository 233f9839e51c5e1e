"""Test the check of tables: missing values, constant columns, classes, and equal rows."""

import json

import pytest
from sample_files import OPTIONS, write_heart, write_table

from pogm.cli import main

ROWS = """domain,age,dose,version,label
a,30,1,7,ill
a,40,,7,well
a,50,3,7,ill
b,30,1,7,well
b,40,2,7,well
b,55,,7,well
"""


def test_everything_is_found(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(ROWS)
    assert main(["data", "check", str(tmp_path / "t.csv"), "--json"]) == 7
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "command": "data check",
        "dataset": str(tmp_path / "t.csv"),
        "samples": {"a": 3, "b": 3},
        "task": "classification",
        "missing": {"dose": {"a": pytest.approx(1 / 3), "b": pytest.approx(1 / 3)}},
        "constant": ["version"],
        "constant_in_domain": {},
        "classes": {"a": {"ill": 2, "well": 1}, "b": {"ill": 0, "well": 3}},
        "single_class": ["b"],
        "single_target": {},
        "single_domain": {"ill": "a"},
        "small": ["a", "b"],
        "groups": None,
        "spellings": [],
        "repeated": [["a:1", "b:1"]],
        "contradictory": [["a:1", "b:1"]],
        "clean": False,
    }
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 7
    out = capsys.readouterr().out
    for text in (
        "dose: a 33%, b 33%",
        "Columns with one value, or almost (1): version",
        "Domains with one class (1): b",
    ):
        assert text in out
    assert "Equal samples with different labels (1): a:1 = b:1" in out
    assert "Classes of one domain, which cannot be held out (1): ill (a)" in out


def test_code_for_missing_values_of_one_domain_is_found(tmp_path, capsys):
    rows = [
        f"{'ab'[n % 2]},{20 + n},{0 if n % 2 else 180 + n},{'xy'[n % 2]},{'ill' if n % 3 else 'well'}"
        for n in range(12)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["domain,age,chol,ward,label", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 0
    shown = capsys.readouterr()
    assert "leave it empty there if it stands for a missing value:\n  chol: 0 in b\n" in shown.out
    assert shown.err == f"Next: pogm verdict {tmp_path / 't.csv'}\n"
    assert main(["data", "check", "t.csv", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"Next: pogm verdict t.csv --data {tmp_path}\n"


def test_small_domains_and_names_in_two_spellings_are_found(tmp_path, capsys):
    rows = [f"{'aAb'[n % 3] if n < 18 else 'c'},{n},{['ill', 'well', 'Well'][n % 7 % 3]}" for n in range(22)]
    (tmp_path / "t.csv").write_text("\n".join(["domain,age,label", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 7
    out, err = capsys.readouterr()
    assert "Next:" not in err, "the data must be corrected first"
    assert "Domains too small for a training and a validation part (1): c\n" in out
    assert "Names that differ in upper and lower case only (2): A = a, Well = well\n" in out


@pytest.mark.parametrize(
    ("column", "values", "code"), [("split", "train val", 0), ("group", "p q", 0), ("group", "p p", 7)]
)
def test_small_domain_that_training_can_divide_is_no_finding(tmp_path, column, values, code):
    """Given splits and groups decide, not the number of samples; a group is never divided."""
    rows = [f"{'a' if n < 8 else 'b'},{n},{'xy'[n // 2 % 2]},{values.split()[n % 2]}" for n in range(12)]
    (tmp_path / "t.csv").write_text("\n".join([f"domain,age,label,{column}", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv")]) == code


def test_many_equal_samples_are_not_all_listed(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("domain,sex,label\n" + "".join(f"{'ab'[n % 2]},1,{n % 3}\n" for n in range(40)))
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 7
    listed = " = ".join(f"a:{n}" for n in range(1, 11))
    assert f"Equal samples with different labels (1): {listed} = 30 more\n" in capsys.readouterr().out


def test_groups_in_several_domains_are_counted(tmp_path, capsys):
    rows = [f"{'ab'[n % 2]},p{n if n > 2 else 0},{n},{'xy'[n % 3 == 0]}" for n in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["domain,patient,age,label", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv"), "--group", "patient"]) == 0
    expected = "10 groups, 1 of them in several domains; their samples in a held-out domain are not really unseen.\n"
    assert expected in capsys.readouterr().out


def test_folder_of_tables_is_refused_with_a_hint(tmp_path, capsys):
    for site in "ab":
        (tmp_path / f"{site}.csv").write_text("age,label\n30,ill\n")
    assert main(["data", "check", str(tmp_path)]) == 3
    assert "put the rows of all domains into one file, with a column domain" in capsys.readouterr().err


def test_numbers_with_a_decimal_comma_are_not_categories(tmp_path, capsys):
    rows = [f"{'ab'[n % 2]};{n};{n},5;{'xy'[n % 3 == 0]}" for n in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["domain;age;dose;label", *rows]) + "\n")
    assert main(["data", "check", str(tmp_path / "t.csv")]) == 3
    assert "numbers with a decimal point in the column dose of t.csv; found '0,5'." in capsys.readouterr().err


def test_misspelt_column_suggests_the_right_one(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(ROWS.replace("label", "outcome"))
    assert main(["data", "check", f"{tmp_path / 't.csv'}:label=outcom"]) == 3
    assert "Did you mean 'outcome'?" in capsys.readouterr().err


def test_clean_data_have_exit_code_0(tmp_path, capsys):
    path = write_table(tmp_path / "t.csv")
    assert main(["data", "check", f"{path}:{OPTIONS}"]) == 0
    assert "Nothing to correct." in capsys.readouterr().out


def test_published_dataset_is_checked_by_name(tmp_path, capsys):
    write_heart(tmp_path)
    main(["data", "check", "HeartDisease", "--data", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["missing"]["chol"] == {"cleveland": 0, "hungarian": 0, "switzerland": 1, "va": 0}
    assert "fbs" in found["constant"]


def test_regression_has_no_classes(tmp_path, capsys):
    path = write_table(tmp_path / "t.csv", regression=True)
    main(["data", "check", f"{path}:{OPTIONS}", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["classes"], found["constant"]) == ("regression", {}, [])
