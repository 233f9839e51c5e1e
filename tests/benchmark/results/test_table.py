"""The table structure and its renderers."""

import csv
import io
import json
from dataclasses import replace

import pytest
from run_folders import text_table

from pogm._system.errors import UsageError
from pogm.benchmark.results.table import Column, Estimate, Row, Table, estimate
from pogm.benchmark.results.table_formats import tables_csv
from pogm.report.page import render_table

COLUMNS = (
    Column("name", "Name", kind="text"),
    Column("score", "Score", unit="%", best="highest", per_trial=True),
    Column("source", kind="text", csv_only=True),
    Column("change", "Change", kind="number", digits="+.2f", csv_digits=".3f"),
)
TABLE = Table(
    "Title",
    COLUMNS,
    (
        Row(("first", estimate([1.0, 3.0]), "here", -0.001)),
        Row(("second", estimate([2.5, 2.5]), "there", 1.5), group="other"),
        Row(("third", Estimate(reason="lost"), "", 0.0), group="other"),
    ),
    footnotes=("A note.",),
)


def formats(table):
    """Return the table in every format."""
    return [table.text(), table.csv(), table.json(), table.latex(), render_table(table, "anchor")]


def test_a_new_column_is_in_every_format_without_a_change_of_a_renderer():
    column = Column("cost", "Cost", kind="number")
    rows = tuple(replace(row, cells=(*row.cells, 1234.5)) for row in TABLE.rows)
    wider = replace(TABLE, columns=(*TABLE.columns, column), rows=rows)
    assert all("1234.5" in text for text in formats(wider))
    assert not any("1234.5" in text for text in formats(TABLE))


def test_text_has_a_line_between_groups_and_marks_the_best():
    rule = "─" * 26
    assert TABLE.text().splitlines() == [
        "Title",
        rule,
        "Name        Score   Change",
        rule,
        "first   2.0 ± 0.7    +0.00",
        rule,
        "second  2.5 ± 0.0*   +1.50",
        "third    X (lost)    +0.00",
        rule,
        "* Best of its column.",
        "A note.",
    ]


def test_text_is_plain_and_lines_are_not_cut_at_the_width_of_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    label = "[bold]a very long name :smile: " + "x" * 200
    text = text_table("Title", ("One", "Two"), [(label, "last")]).text()
    assert f"{label}  last" in text.splitlines()
    assert "\x1b" not in text


def test_csv_with_one_line_per_row_has_all_columns():
    header, first, *_, third = csv.reader(io.StringIO(TABLE.csv()))
    assert header == ["name", "mean", "stderr", "n", "source", "change"]
    assert first == ["first", "2.0000", "0.7071", "2", "here", "-0.001"]
    assert third == ["third", "", "", "0", "", "0.000"]


def test_tables_with_different_columns_are_not_written_to_one_csv():
    with pytest.raises(UsageError, match="same columns"):
        tables_csv([TABLE, text_table("Other", ("Name",), [("x",)])])


def test_json_has_rows_as_a_list_or_by_their_keys():
    assert json.loads(TABLE.json())["rows"][1]["score"]["mean"] == 2.5
    rows = tuple(replace(row, key=f"row {i}") for i, row in enumerate(TABLE.rows))
    keyed = replace(TABLE, row_key="label", rows=rows)
    assert json.loads(keyed.json())["rows"]["row 1"]["change"] == 1.5
    assert json.loads(TABLE.json())["units"] == {"score": "%"}


def test_latex_aligns_text_to_the_left_and_numbers_to_the_right():
    latex = TABLE.latex()
    assert latex.startswith("\\begin{tabular}{lrr}\n")
    assert r"second & \textbf{2.5 $\pm$ 0.0} & +1.50 \\" in latex
    assert "% A note." in latex


def test_html_marks_the_best_and_shows_reasons():
    html = render_table(TABLE, "anchor")
    assert '<td title="n = 2"><b>2.5</b><small> ± 0.0</small></td><td>+1.50</td>' in html
    assert '<td class="missing">X <small>lost</small></td>' in html
